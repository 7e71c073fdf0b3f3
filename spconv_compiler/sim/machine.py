"""The state of a batch of waves: registers, which parts of them are defined, program counters, local memory.

Waves of a batch run in lockstep as far as their control flow allows, so that one numpy operation serves all lanes of
all waves. A vector register is uint32 [wave, lane] with 64 bits of definedness a wave; a scalar register is uint32
[wave] with 32, since scalar registers hold lane masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.instruction import EXEC, Instruction
from spconv_compiler.sim.local import EPOCHS, LocalMemory
from spconv_compiler.sim.memory import Memory
from spconv_compiler.sim.transfers import PrivateMemory, Transfers

LANES = 64
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
WHOLE = np.uint32(0xFFFFFFFF)
_FILL = 0xFFA5FFA5
_SCALARS = 128
RUNNING, AT_BARRIER, ENDED = 0, 1, 2

# Called with the instruction, then for each wave the number of its workgroup, its own number, the lanes that access
# memory, their addresses (of local memory: byte offsets; of scalar loads: lane 0), all [n] or [n, 64]; and the bytes
# of a lane. Instructions with two addresses are two calls.
Observer = Callable[[Instruction, Array, Array, Array, Array, int], None]


def unpack(masks: Array) -> Array:
    """bool [n, 64] from lane masks uint64 [n]."""
    return np.unpackbits(np.ascontiguousarray(masks)[:, None].view(np.uint8), axis=1, bitorder="little").view(np.bool_)


def pack(lanes: Array) -> Array:
    """uint64 [n] from bool [n, 64]."""
    return np.packbits(lanes, axis=1, bitorder="little").view(np.uint64)[:, 0]


@dataclasses.dataclass
class Batch:
    """Waves of some workgroups of one launch.

    Attributes:
        groups: number of the workgroup of each wave in the launch; slots: its place in this batch; waves: the number
            of each wave in its workgroup. segments: who the wave is for the memory until the next barrier.
        observer: is told of every memory instruction: see `Active.observe`.
        at: the instruction that runs, for messages.
    """

    kernel: Kernel
    memory: Memory
    groups: Array
    waves: Array
    group_waves: int
    observer: Observer | None = None

    def __post_init__(self) -> None:
        count = len(self.groups)
        self.count = count
        self.slots = np.arange(count) // self.group_waves
        registers = self.kernel.descriptor.vgprs
        self.vector = np.full((registers, count, LANES), _FILL, np.uint32)
        self.vector_defined = np.zeros((registers, count), np.uint64)
        self.scalar = np.full((_SCALARS, count), _FILL, np.uint32)
        self.scalar_defined = np.zeros((_SCALARS, count), np.uint32)
        self.scc, self.scc_defined = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self.position = np.zeros(count, np.int64)
        self.status = np.full(count, RUNNING)
        self.epochs = np.zeros(count, np.int64)
        self.local = LocalMemory(count // self.group_waves, self.kernel.descriptor.lds_bytes)
        self.segments = np.zeros(count, np.int64)
        self._begin_epoch(np.ones(count, np.bool_))
        self.transfers = Transfers(count)
        # Of releases: the count of issued instructions with it, 0 for none; of acquires: the last release noted.
        self.releasing, self.noted = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.private = PrivateMemory(count, self.kernel.descriptor.scratch_bytes)
        self.ticks = 0
        self.at: Instruction | None = None

    def _begin_epoch(self, chosen: Array) -> None:
        slots, place = np.unique(self.slots[chosen], return_inverse=True)
        leaders = slots * self.group_waves
        first = self.memory.begin_epoch(self.groups[leaders])
        if self.group_waves > 1:
            self.memory.fences.follow(first, self.segments[leaders])
        self.segments[chosen] = first[place] + self.waves[chosen]

    def pass_barrier(self, waiting: Array) -> None:
        """Whole workgroups go on: bool [n]."""
        self.epochs[waiting] += 1
        if self.group_waves > 1:
            self._begin_epoch(waiting)
        self.local.renew(np.unique(self.slots[waiting & (self.epochs % EPOCHS == 0)]))

    def set_scalar(self, number: int, value: Any) -> None:
        """Sets a scalar register of all waves at launch."""
        self.scalar[number], self.scalar_defined[number] = value, WHOLE

    def fault(self, wave: int, lane: int | None, reason: str) -> Fault:
        """The error of one wave (by its place in the batch) at the instruction that runs."""
        where = f"workgroup {self.groups[wave]}, wave {self.waves[wave]}" + ("" if lane is None else f", lane {lane}")
        text = "launch" if self.at is None else f"0x{self.at.address:x}: {self.at}"
        return Fault(f"{self.kernel.name}: {text}\n  {where}: {reason}")


class Active:
    """The waves of a batch that run an instruction together, and their EXEC.

    Attributes:
        at: index into the wave axis of the batch's arrays: a slice when all waves run.
        waves: the same as numbers. exec: uint64 [n]; lanes: bool [n, 64]; full: every lane of every wave is on.
    """

    def __init__(self, batch: Batch, waves: Array) -> None:
        self.batch, self.waves, self.count = batch, waves, len(waves)
        self.at: Any = slice(None) if self.count == batch.count else waves
        self.read_exec()

    def read_exec(self) -> None:
        """Follows a change of EXEC."""
        low, high = self.batch.scalar[EXEC][self.at], self.batch.scalar[EXEC + 1][self.at]
        self.exec = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
        self.full = bool((self.exec == ALL).all())
        self.lanes = unpack(self.exec)

    def fail(self, bad: Array, reason: str) -> NoReturn:
        """Raises the Fault of the first true element of bad [n] or [n, lane]."""
        place = np.argwhere(bad)[0]
        lane = int(place[1]) if len(place) > 1 else None
        raise self.batch.fault(int(self.waves[place[0]]), lane, reason)

    def require_lanes(self, defined: Array, what: str) -> None:
        """Every active lane of uint64 [n] must be defined."""
        missing = self.exec & ~defined
        if missing.any():
            self.fail(unpack(missing), f"{what} is undefined")

    def observe(self, lanes: Array, addresses: Array, size: int) -> None:
        """Tells the observer, if there is one, what the instruction accesses: lanes bool, addresses, both [n, 64]."""
        batch = self.batch
        if batch.observer is not None and batch.at is not None:
            wide = addresses.astype(np.uint64)
            batch.observer(batch.at, batch.groups[self.waves], batch.waves[self.waves], lanes, wide, size)

    # Vector registers.

    def vector(self, register: int) -> tuple[Array, Array]:
        """(uint32 [n, lane], defined lanes uint64 [n])."""
        return self.batch.vector[register][self.at], self.batch.vector_defined[register][self.at]

    def set_vector(self, register: int, values: Array, defined: Array, *, ignore_exec: bool = False) -> None:
        """Writes the active lanes."""
        target, known = self.batch.vector[register], self.batch.vector_defined[register]
        if self.full or ignore_exec:
            target[self.at], known[self.at] = values, defined
            return
        if isinstance(self.at, slice):
            np.copyto(target, values, where=self.lanes, casting="unsafe")
        else:
            target[self.at] = np.where(self.lanes, values, target[self.at])
        known[self.at] = known[self.at] & ~self.exec | defined & self.exec

    def set_lanes(self, register: int, values: Array, defined: Array, mask: Array) -> None:
        """Writes the lanes of a mask, uint64 [n], whatever EXEC is."""
        target, known = self.batch.vector[register], self.batch.vector_defined[register]
        target[self.at] = np.where(unpack(mask), values, target[self.at])
        known[self.at] = known[self.at] & ~mask | defined & mask

    # Scalar registers.

    def scalar(self, register: int) -> tuple[Array, Array]:
        """(uint32 [n], defined bits uint32 [n])."""
        return self.batch.scalar[register][self.at], self.batch.scalar_defined[register][self.at]

    def scalar_pair(self, register: int) -> tuple[Array, Array]:
        """(uint64 [n], defined bits uint64 [n])."""
        (low, low_known), (high, high_known) = self.scalar(register), self.scalar(register + 1)
        shift = np.uint64(32)
        return (
            low.astype(np.uint64) | high.astype(np.uint64) << shift,
            low_known.astype(np.uint64) | high_known.astype(np.uint64) << shift,
        )

    def set_scalar(self, register: int, values: Array, defined: Array) -> None:
        """Writes a scalar register; EXEC must be defined in every bit, and takes effect at once."""
        self.batch.scalar[register][self.at] = values
        self.batch.scalar_defined[register][self.at] = defined
        if register >= EXEC:
            if (self.batch.scalar_defined[register][self.at] != WHOLE).any():
                self.fail(self.batch.scalar_defined[register][self.at] != WHOLE, "EXEC becomes undefined")
            self.read_exec()

    def set_scalar_pair(self, register: int, values: Array, defined: Array) -> None:
        """Writes two scalar registers."""
        for part in (0, 1):
            shift = np.uint64(32 * part)
            self.set_scalar(register + part, (values >> shift).astype(np.uint32), (defined >> shift).astype(np.uint32))

    def set_scc(self, values: Array, defined: Array) -> None:
        """Writes SCC."""
        self.batch.scc[self.at], self.batch.scc_defined[self.at] = values, defined

    def require_scc(self) -> Array:
        """SCC of every wave, bool [n]; an error where it is undefined."""
        known = self.batch.scc_defined[self.at]
        if not known.all():
            self.fail(~known, "SCC is undefined")
        return self.batch.scc[self.at]
