"""Runs kernels of a code object on numpy arrays: the reference for every faster way of running them.

A launch runs batch after batch of workgroups. In a batch, the waves with the lowest program counter run together
until a branch parts them or they meet others; at a barrier a wave waits for its workgroup. A workgroup may wait for
another one of its batch or of an earlier one. The instruction budget turns waiting for others, and any endless loop,
into an error.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spconv_compiler.sim import (
    execute_cross,
    execute_hardware,
    execute_memory,
    execute_order,
    execute_scalar,
    execute_transfer,
    execute_vector,
)
from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import Kernel, find_kernel
from spconv_compiler.sim.errors import Fault, LaunchFault
from spconv_compiler.sim.instruction import EXEC, Instruction, Operand
from spconv_compiler.sim.listing import placed
from spconv_compiler.sim.machine import ALL, AT_BARRIER, ENDED, LANES, RUNNING, Active, Batch, Observer
from spconv_compiler.sim.memory import Allocation, Memory
from spconv_compiler.sim.static_checks import check
from spconv_compiler.sim.waits import COUNTED_BY_VMCNT

BUDGET = 200_000_000
BARRIER_MISSED = "a wave of the workgroup has ended without reaching the barrier at which this one waits"
FENCES = ("buffer_wbl2", "buffer_inv")
_BATCH_WAVES = 256
# Jumps back to one place before other waves have a turn; a jump of a loop that waits for others counts for many.
_PATIENCE, _WAITING_LOOP = 2048, 64
_KERNARG_POINTER = 1 << 3
_KERNARG_ALIGNMENT = 16
_FLOAT_MODE = 0xF0
_LDS_BYTES = 160 * 1024
_SCRATCH_BYTES = 16 * 1024
_MAX_GRID = 2**31 - 1
# As many as segments can tell apart (cells.py); more would also take minutes.
_MAX_GROUPS = 2**24


@dataclasses.dataclass
class Counts:
    """What a launch did: wave instructions by opcode, waves, and instructions by address."""

    waves: int = 0
    instructions: int = 0
    by_address: dict[int, int] = dataclasses.field(default_factory=dict)


class Program:
    """A kernel, decoded and bound to the functions that execute it.

    Attributes:
        waiting: addresses of branches back over a look at what other workgroups write.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.instructions = decode(kernel.code, kernel.address)
        self.index = {item.address: index for index, item in enumerate(self.instructions)}
        self.waiting = {item.address for item in self.instructions if self._waits(item)}
        counted = any(is_counted(item) for item in self.instructions)
        self.steps = [self._bind_counted(item) if counted else self._bind(item) for item in self.instructions]

    def _waits(self, item: Instruction) -> bool:
        if item.row.kind != "branch" or item.operands[0].number > item.address:
            return False
        body = self.instructions[self.index.get(item.operands[0].number, 0) : self.index[item.address]]
        return any(each.row.name == "s_sleep" or {"sc0", "sc1"} & each.modifiers.keys() for each in body)

    def register(self, operand: Operand) -> int:
        """Place of a vector or accumulation register in the register file, checked against the allocation."""
        descriptor = self.kernel.descriptor
        start = descriptor.accum_offset if operand.kind == "a" else 0
        limit = descriptor.vgprs if operand.kind == "a" else min(descriptor.vgprs, descriptor.accum_offset)
        if start + operand.number + operand.dwords > limit:
            raise LaunchFault(f"{self.kernel.name}: {operand} is not allocated: {limit - start} registers are")
        return start + operand.number

    def _bind_counted(self, item: Instruction) -> Callable[[Active], Any]:
        """In a kernel that loads straight to LDS, or has fences, waits and what they count have a part in it."""
        if item.row.kind == "wait":
            return execute_order.wait(item)
        fence = item.row.name in FENCES
        run = execute_order.fence(item) if fence else self._bind(item)
        access = item.row.access
        if access is not None and item.row.kind in ("buffer", "global", "flat"):
            if access.kind == "atomic" or access.kind == "load" and "sc1" in item.modifiers:
                run = execute_order.note_releases(run)
        counted = item.row.kind in COUNTED_BY_VMCNT and item.format != "SMEM"
        return execute_order.count_issue(run) if counted else run

    def _bind(self, item: Instruction) -> Callable[[Active], Any]:
        match item.row.kind:
            case "salu":
                return execute_scalar.arithmetic(item)
            case "saveexec":
                return execute_scalar.save_exec(item)
            case "branch":
                return execute_scalar.branch_taken(item)
            case "smem" if item.operands[2].kind == "offset" and item.operands[1].dwords == 2:
                return execute_scalar.load(item)
            case "smem":
                return execute_hardware.load(item)
            case "getreg":
                return execute_hardware.get_register(item)
            case "setreg":
                return execute_hardware.set_register(item)
            case "clock":
                return execute_hardware.clock(item)
            case "trap":
                return execute_hardware.trap(item)
            case "valu":
                return execute_vector.arithmetic(item, self.register)
            case "lane" if item.row.name == "v_writelane_b32":
                return execute_cross.write_lane(item, self.register)
            case "swap":
                return execute_cross.swap(item, self.register)
            case "cmpx":
                return execute_cross.compare_exec(item, self.register)
            case "lane":
                return execute_vector.lane_read(item, self.register)
            case "mfma":
                return execute_vector.multiply(item, self.register)
            case "buffer" | "global" | "flat":
                if execute_transfer.is_plain(item):
                    return execute_memory.vector_memory(item, self.register)
                return execute_transfer.vector_memory(item, self.register)
            case "lds":
                if execute_transfer.is_plain(item):
                    return execute_memory.local_memory(item, self.register)
                return execute_transfer.local_memory(item, self.register)
            case "permute" if item.row.name == "ds_bpermute_b32":
                return execute_memory.permute(item, self.register)
            case "permute":
                return execute_transfer.permute(item, self.register)
            case "scratch":
                return execute_transfer.scratch(item, self.register)
        # Waits, no-ops, barriers and the end change no register: waits are checked before a kernel runs.
        return lambda active: None


def is_counted(item: Instruction) -> bool:
    """Whether waits do more in its kernel than let time pass."""
    return item.row.name in FENCES or item.row.access is not None and item.row.access.lds


class Machine:
    """The kernels of a code object and one device memory: its own, or one that is given."""

    def __init__(self, kernels: Mapping[str, Kernel], budget: int = BUDGET, memory: Memory | None = None) -> None:
        self.kernels = kernels
        self.memory = Memory() if memory is None else memory
        self.budget = budget
        self.observer: Observer | None = None
        self._programs: dict[str, Program] = {}

    def program(self, name: str) -> Program:
        """The decoded kernel; raises ObjectError, DecodeError, or a Fault when a static check fails."""
        if name not in self._programs:
            program = Program(find_kernel(self.kernels, name))
            violations = check(program.instructions)
            if violations:
                fault = Fault(f"{name}: {len(violations)} violations, the first at {violations[0]}")
                raise placed(fault, name, program.instructions, violations[0].instruction.address)
            self._programs[name] = program
        return self._programs[name]

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: int,
        arguments: Sequence[int | Allocation],
        order: Sequence[int] | None = None,
    ) -> Counts:
        """Runs a kernel to its end.

        Args:
            grid: workgroups per axis, one to three; block: lanes of a workgroup.
            arguments: allocations, or numbers that are passed by value.
            order: numbers of the workgroups in the order in which they start; ascending by default.

        Raises:
            LaunchFault: what is asked for does not fit the kernel or the machine.
            Fault: the kernel does what it must not do.
        """
        program = self.program(name)
        check_launch(program.kernel, grid, block)
        packed = pack_arguments(program.kernel, arguments)
        size = max(1, -(-len(packed) // _KERNARG_ALIGNMENT)) * _KERNARG_ALIGNMENT
        kernarg = self.memory.allocate(f"arguments of {name}", size, writable=False)
        self.memory.write_array(kernarg, np.frombuffer(packed, np.uint8))
        sizes = [*grid, *[1] * (3 - len(grid))]
        groups = np.arange(int(np.prod(sizes))) if order is None else np.asarray(order, np.int64)
        waves = -(-block // LANES)
        self.memory.begin_launch(waves)
        counts = Counts()
        step = max(1, _BATCH_WAVES // waves)
        try:
            for start in range(0, len(groups), step):
                batch = _make_batch(self.memory, program.kernel, groups[start : start + step], waves)
                batch.observer = self.observer
                _set_registers(batch, kernarg.address, sizes, block)
                try:
                    _Run(batch, program, self.budget, counts).run()
                except Fault as fault:
                    if batch.at is None:
                        raise
                    raise placed(fault, name, program.instructions, batch.at.address) from fault
        finally:
            self.memory.free(kernarg)
        return counts


def check_launch(kernel: Kernel, grid: Sequence[int], block: int) -> None:
    """Raises LaunchFault when the machine or this simulator cannot start the kernel."""
    descriptor = kernel.descriptor
    if not 1 <= len(grid) <= 3 or any(not 0 < size <= _MAX_GRID for size in grid):
        raise LaunchFault(f"{kernel.name}: grid {list(grid)}; accepted: one to three sizes from 1 to {_MAX_GRID}")
    if math.prod(grid) > _MAX_GROUPS:
        raise LaunchFault(f"{kernel.name}: {math.prod(grid)} workgroups; accepted by the simulator: {_MAX_GROUPS}")
    if not 0 < block <= kernel.max_lanes or kernel.block not in (None, (block, 1, 1)):
        raise LaunchFault(f"{kernel.name}: {block} lanes a workgroup; accepted: {kernel.block or kernel.max_lanes}")
    if descriptor.lds_bytes > _LDS_BYTES or descriptor.vgprs > 512:
        raise LaunchFault(f"{kernel.name}: {descriptor.lds_bytes} bytes of LDS, {descriptor.vgprs} vector registers")
    if descriptor.kernarg_preload or descriptor.workgroup_info:
        raise LaunchFault(f"{kernel.name}: preloaded arguments and workgroup info are not supported")
    if descriptor.scratch_bytes > _SCRATCH_BYTES:
        raise LaunchFault(f"{kernel.name}: {descriptor.scratch_bytes} bytes of scratch memory a lane")
    if descriptor.properties & 0x7F != _KERNARG_POINTER or descriptor.user_sgprs != 2:
        raise LaunchFault(
            f"{kernel.name}: user registers 0x{descriptor.properties & 0x7F:x}; supported: the argument pointer only"
        )
    if descriptor.float_mode != _FLOAT_MODE or not descriptor.ieee or not descriptor.dx10_clamp:
        raise LaunchFault(f"{kernel.name}: float mode 0x{descriptor.float_mode:x}; supported: 0x{_FLOAT_MODE:x}, IEEE")


def pack_arguments(kernel: Kernel, arguments: Sequence[int | Allocation]) -> bytes:
    """The argument block.

    Raises:
        LaunchFault: number, kind or size of the arguments differ from the kernel's metadata.
    """
    if len(arguments) != len(kernel.arguments):
        raise LaunchFault(f"{kernel.name} takes {len(kernel.arguments)} arguments, given: {len(arguments)}")
    packed = bytearray(kernel.descriptor.kernarg_bytes)
    for number, (slot, value) in enumerate(zip(kernel.arguments, arguments, strict=True)):
        if (slot.kind == "global_buffer") != isinstance(value, Allocation) or slot.size not in (4, 8):
            raise LaunchFault(f"{kernel.name}: argument {number} is a {slot.kind} of {slot.size} bytes, given: {value}")
        if slot.offset + slot.size > len(packed):
            raise LaunchFault(f"{kernel.name}: argument {number} lies outside the {len(packed)} bytes of arguments")
        bits = value.address if isinstance(value, Allocation) else value
        if not -(1 << 8 * slot.size - 1) <= bits < 1 << 8 * slot.size:
            raise LaunchFault(f"{kernel.name}: argument {number} is {bits}, which {slot.size} bytes do not hold")
        struct.pack_into("<Q" if slot.size == 8 else "<I", packed, slot.offset, bits & (1 << 8 * slot.size) - 1)
    return bytes(packed)


def _make_batch(memory: Memory, kernel: Kernel, groups: Array, waves: int) -> Batch:
    each = np.repeat(groups, waves)
    return Batch(kernel, memory, each, np.tile(np.arange(waves), len(groups)), waves)


def _set_registers(batch: Batch, kernarg: int, sizes: Sequence[int], block: int) -> None:
    """What the hardware sets before the first instruction, as the kernel descriptor asks."""
    descriptor = batch.kernel.descriptor
    batch.set_scalar(0, kernarg & 0xFFFFFFFF)
    batch.set_scalar(1, kernarg >> 32)
    number = descriptor.user_sgprs
    place = batch.groups
    for wanted, size in zip(descriptor.group_ids, sizes, strict=True):
        if wanted:
            batch.set_scalar(number, place % size)
            number += 1
        place = place // size
    lane = batch.waves[:, None] * LANES + np.arange(LANES)
    on = lane < block
    # With one-dimensional workgroups the y and z parts of a packed v0 are zero.
    batch.vector[0], batch.vector_defined[0] = lane, ALL
    masks = np.packbits(on, axis=1, bitorder="little").view(np.uint64)[:, 0]
    batch.set_scalar(EXEC, (masks & np.uint64(0xFFFFFFFF)).astype(np.uint32))
    batch.set_scalar(EXEC + 1, (masks >> np.uint64(32)).astype(np.uint32))


class _Run:
    """Runs one batch to its end."""

    def __init__(self, batch: Batch, program: Program, budget: int, counts: Counts) -> None:
        self.batch, self.program, self.budget, self.counts = batch, program, budget, counts
        self.jumps = 0
        counts.waves += batch.count

    def run(self) -> None:
        batch, before = self.batch, -1
        while True:
            running = batch.status == RUNNING
            if running.any():
                # Those behind have their turn first, and meet the others. But they may wait for those in front.
                place = int(batch.position[running].min())
                if place != before:
                    self.jumps = 0
                before, ahead = place, self.jumps >= _PATIENCE
                if ahead:
                    self._release()
                    running = batch.status == RUNNING
                    place, self.jumps = int(batch.position[running].max()), 0
                chosen = running & (batch.position == place)
                rest = batch.position[running & ~chosen]
                meet = int(rest.min()) if len(rest) and not ahead else -1
                self._straight(Active(batch, np.flatnonzero(chosen)), place, meet)
            elif not self._release():
                return

    def _release(self) -> bool:
        """Lets workgroups go on that wait at a barrier as a whole; False when there are none."""
        batch = self.batch
        running = np.bincount(batch.slots, batch.status == RUNNING)[batch.slots] > 0
        waiting = (batch.status == AT_BARRIER) & ~running
        left = np.bincount(batch.slots, batch.status == ENDED)[batch.slots] > 0
        if (waiting & left).any():
            wave = int((waiting & left).argmax())
            batch.at = self.program.instructions[int(batch.position[wave]) - 1]
            raise batch.fault(wave, None, BARRIER_MISSED)
        batch.status[waiting] = RUNNING
        batch.pass_barrier(waiting)
        return bool(waiting.any())

    def _straight(self, active: Active, place: int, meet: int) -> None:
        """Runs from `place` until the waves part, wait, end, or reach `meet`, where others stand."""
        batch, program, counts = self.batch, self.program, self.counts
        while True:
            item = program.instructions[place]
            batch.at = item
            counts.instructions += active.count
            counts.by_address[item.address] = counts.by_address.get(item.address, 0) + active.count
            if counts.instructions > self.budget:
                raise batch.fault(int(active.waves[0]), None, f"more than {self.budget} instructions: an endless loop?")
            found = program.steps[place](active)
            place += 1
            if item.row.kind == "branch":
                target = program.index[item.operands[0].number]
                if target < place and found.any():
                    self.jumps += _WAITING_LOOP if item.address in program.waiting else 1
                if found.all():
                    place = target
                    if self.jumps >= _PATIENCE:
                        batch.position[active.waves] = place
                        return
                elif found.any():
                    batch.position[active.waves] = np.where(found, target, place)
                    return
                if meet >= 0 and place >= meet:
                    batch.position[active.waves] = place
                    return
            elif item.row.kind in ("barrier", "end"):
                batch.position[active.waves] = place
                batch.status[active.waves] = AT_BARRIER if item.row.kind == "barrier" else ENDED
                return
            elif place == meet:
                batch.position[active.waves] = place
                return
