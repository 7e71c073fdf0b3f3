"""One launch on the native engine: what its threads share, and records, contexts and local memory of each thread."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.errors import Fault, LaunchFault
from spconv_compiler.sim.listing import placed
from spconv_compiler.sim.machine import Observer, unpack
from spconv_compiler.sim.memory import Memory
from spconv_compiler.sim.native import faults, layout, memory_block
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.library import Library
from spconv_compiler.sim.native.program import NativeProgram, aligned

Bytes = npt.NDArray[np.uint8]
_TRACE_ENTRIES = 1024


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to run: see NativeMachine."""

    budget: int
    threads: int
    window: int
    slice_branches: int


class Shared:
    """What the threads of a launch share.

    Attributes:
        program: the kernel. addresses: of its handlers. grid, block: as asked for. kernarg: address of the arguments.
        groups: numbers of the workgroups in their order. words: next place in that list, next segment, stop, lock of
            float atomics, releases.
        observer: is told of memory instructions, or None; lock: held while it is.
    """

    def __init__(
        self,
        memory: Memory,
        program: NativeProgram,
        addresses: Mapping[str, int],
        grid: Sequence[int],
        block: int,
        kernarg: int,
        groups: npt.NDArray[np.int64],
        observer: Observer | None,
    ) -> None:
        self.memory, self.program, self.addresses, self.observer = memory, program, addresses, observer
        self.grid, self.block, self.kernarg = grid, block, kernarg
        self.groups = np.ascontiguousarray(groups, np.int64)
        # Each counter has its own cache lines.
        self._lines = aligned(5 * 128).view(np.int64).reshape(5, 16)
        self.words = self._lines[:, 0]
        self.words[1] = memory.next_segment
        self.lock = threading.Lock()

    def address(self, index: int) -> int:
        """Address of a counter."""
        return int(self._lines[index].ctypes.data)


class Thread:
    """Records, contexts, local memory, launch block and trace of one thread."""

    def __init__(self, shared: Shared, settings: Settings) -> None:
        self._shared, self._settings = shared, settings
        program = shared.program
        descriptor = program.kernel.descriptor
        waves = -(-shared.block // layout.LANES)
        window = min(settings.window, max(1, len(shared.groups)))
        self._context_bytes = layout.context_bytes(descriptor.vgprs)
        self.records = program.records(shared.addresses)
        self.contexts = aligned(window * waves * self._context_bytes)
        prepare_contexts(self.contexts.reshape(-1, self._context_bytes), program.constants, shared.addresses)
        stride = memory_block.local_stride(descriptor.lds_bytes)
        self._local, self._cells = aligned(window * stride), aligned(window * stride)
        # The bytes of the lanes, and as many that say which were written.
        private = 2 * layout.LANES * descriptor.scratch_bytes
        self._private = aligned(window * waves * private)
        self.block = aligned(layout.LAUNCH_BYTES)
        memory_block.fill(self.block, shared.memory, settings.threads)
        numbers = iter(range(descriptor.user_sgprs, layout.SCALAR_COUNT))
        registers = [next(numbers) if wanted else -1 for wanted in descriptor.group_ids]
        self.block[layout.GROUP_ID_REGISTERS :][:12].view(np.int32)[:] = registers
        self._put(
            {
                layout.NEXT_GROUP: shared.address(0),
                layout.RUN_LIST: shared.groups.ctypes.data,
                layout.RUN_LENGTH: len(shared.groups),
                layout.CONTEXTS: self.contexts.ctypes.data,
                layout.CONTEXT_BYTES: self._context_bytes,
                layout.WINDOW: window,
                layout.GROUP_WAVES: waves,
                layout.PROGRAM: self.records.ctypes.data,
                layout.SLICE_BRANCHES: settings.slice_branches,
                layout.BUDGET: settings.budget,
                layout.STOP: shared.address(2),
                layout.LANES_OF_GROUP: shared.block,
                layout.GRID_X: shared.grid[0],
                layout.GRID_Y: shared.grid[1],
                layout.GRID_Z: shared.grid[2],
                layout.KERNARG: shared.kernarg,
                layout.VECTOR_COUNT: descriptor.vgprs,
                layout.LDS_SIZE: descriptor.lds_bytes,
                layout.LDS_STRIDE: stride,
                layout.LDS_BASE: self._local.ctypes.data,
                layout.LDS_CELLS_BASE: self._cells.ctypes.data,
                layout.PRIVATE_BASE: self._private.ctypes.data,
                layout.PRIVATE_STRIDE: private,
                layout.PRIVATE_BYTES: descriptor.scratch_bytes,
                layout.RECORDS: len(program.instructions),
                layout.SEGMENT_NEXT: shared.address(1),
                memory_block.LOCK: shared.address(3),
                memory_block.FENCE_CLOCK: shared.address(4),
            }
        )
        self._failed: BaseException | None = None
        if shared.observer is not None:
            self._begin_trace()

    def _put(self, words: Mapping[int, int]) -> None:
        for offset, value in words.items():
            self.block[offset : offset + 8].view(np.int64)[0] = value

    def word(self, offset: int) -> int:
        """An int64 of the launch block."""
        return int(self.block[offset : offset + 8].view(np.int64)[0])

    def run(self, library: Library) -> None:
        """Runs workgroups until the list is empty or a fault is found."""
        library.run(self.block.ctypes.data)
        if self._shared.observer is not None:
            self._drain()

    def counts(self) -> npt.NDArray[np.int64]:
        """How often each instruction ran."""
        return self.records.view(np.int64).reshape(-1, layout.RECORD_BYTES // 8)[:, layout.COUNT // 8]

    # The trace of memory accesses.

    def _begin_trace(self) -> None:
        self._trace = aligned(_TRACE_ENTRIES * memory_block.TRACE_BYTES)
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda block: self._drain())
        start = self._trace.ctypes.data
        pointer = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert pointer is not None
        self._put(
            {
                memory_block.TRACE_NEXT: start,
                memory_block.TRACE_END: start + self._trace.nbytes,
                memory_block.TRACE_DRAIN: pointer,
            }
        )

    def _drain(self) -> None:
        """Tells the observer of the entries so far. Its error ends the launch: native code cannot pass it on."""
        start = self._trace.ctypes.data
        used = self._trace[: self.word(memory_block.TRACE_NEXT) - start].reshape(-1, memory_block.TRACE_BYTES)
        self._put({memory_block.TRACE_NEXT: start})
        if self._failed is None and len(used):
            try:
                self._tell(used)
            except BaseException as error:
                self._failed = error
                self._shared.words[2] = 1

    def _tell(self, entries: Bytes) -> None:
        observer, instructions = self._shared.observer, self._shared.program.instructions
        assert observer is not None
        numbers = np.ascontiguousarray(entries[:, :8]).view(np.int32)
        words = np.ascontiguousarray(entries[:, 8:]).view(np.uint64)
        # Entries of one instruction that follow each other are one call.
        ends = np.flatnonzero(np.diff(numbers[:, 0], append=-1)) + 1
        with self._shared.lock:
            for first, end in zip(np.r_[0, ends[:-1]], ends, strict=True):
                part = words[first:end]
                observer(
                    instructions[int(numbers[first, 0])],
                    part[:, 0].astype(np.int64),
                    numbers[first:end, 1].astype(np.int64),
                    unpack(part[:, 1]),
                    part[:, 3:],
                    int(part[0, 2]),
                )

    # The end.

    def error(self) -> BaseException | None:
        """What went wrong in this thread: a fault of the kernel, or an error of the observer."""
        place = self.word(layout.FAULTY)
        if self._failed is not None or not place:
            return self._failed
        first = (place - self.contexts.ctypes.data) // self._context_bytes * self._context_bytes
        return self._fault(self.contexts[first : first + self._context_bytes])

    def _fault(self, context: Bytes) -> Exception:
        def read(offset: int, kind: type = np.int32) -> int:
            return int(context[offset:][: np.dtype(kind).itemsize].view(kind)[0])

        code = read(layout.FAULT_CODE)
        if code == Code.SEGMENTS:
            return LaunchFault(
                f"more than {layout.MOST_SEGMENTS - 1} segments (wave, workgroup, barrier) in one launch"
            )
        program = self._shared.program
        index = (read(layout.FAULT_RECORD, np.int64) - self.records.ctypes.data) // layout.RECORD_BYTES
        item = program.instructions[index]
        lane: int | None = read(layout.FAULT_LANE)
        lane = None if lane == -1 else lane
        if code == Code.MEMORY:
            fields = self.records.view(np.int32).reshape(-1, layout.RECORD_BYTES // 4)[index, layout.FIELDS // 4 :]
            lane, reason = faults.explain(self._shared.memory, item, context, fields)
        elif code == Code.LANDING:
            lane, reason = faults.explain_landing(context)
        elif code == Code.BUDGET:
            reason = f"more than {self._settings.budget} instructions: an endless loop?"
        else:
            reason = faults.text_of(code, item, context, lane, program.kernel.descriptor.scratch_bytes)
        where = f"workgroup {read(layout.GROUP, np.int64)}, wave {read(layout.WAVE)}"
        where += "" if lane is None else f", lane {lane}"
        fault = Fault(f"{program.kernel.name}: 0x{item.address:x}: {item}\n  {where}: {reason}")
        return placed(fault, program.kernel.name, program.instructions, item.address)


def prepare_contexts(contexts: Bytes, constants: npt.NDArray[np.uint32], addresses: Mapping[str, int]) -> None:
    """Writes what stays the same in every context [n, bytes]: constants, which are defined, and functions."""
    end = layout.CONSTANTS + constants.nbytes
    contexts[:, layout.CONSTANTS : end] = constants.view(np.uint8)
    contexts[:, layout.CONSTANTS + layout.SCALAR_DEFINED : end + layout.SCALAR_DEFINED] = 0xFF
    for offset, name in ((layout.RAISE, "raise_fault"), (layout.MERGE, "merge")):
        contexts[:, offset : offset + 8] = np.array([addresses[name]], np.uint64).view(np.uint8)


def run_all(runs: Sequence[Callable[[], None]]) -> None:
    """Runs all at once, the first one in the thread that calls."""
    others = [threading.Thread(target=run) for run in runs[1:]]
    for other in others:
        other.start()
    try:
        runs[0]()
    finally:
        for other in others:
            other.join()
