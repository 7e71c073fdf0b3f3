"""Where the memory handlers keep things: in the context of a wave, in the launch block, and behind the arena."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim.memory import Memory
from spconv_compiler.sim.native import layout

# In the context: the addresses of the lanes of a memory instruction (8 bytes each), where lanes that access nothing
# have one of the safe addresses; behind them what the handlers found out.
ROOM = layout.SCRATCH + 4 * layout.VECTOR_BYTES
ROOM_BITS = 8 * layout.LANES  # int64: all offsets in the arena, or-ed
ROOM_PARTLY = ROOM_BITS + 8  # int64: lanes that are partly beyond the end of the buffer
ROOM_MASK = ROOM_BITS + 16  # int64: lanes that access memory
ROOM_SUSPECT = ROOM_BITS + 24  # int64: not zero when the numpy engine must look at the access
ROOM_DEFINED = ROOM_BITS + 32  # four int64: the lanes whose data of a store is defined, by register

ROOM_PART = ROOM_BITS + 64  # int64: of an instruction with two places, the one that is accessed

# In the launch block.
SHARED = layout.LAUNCH_MEMORY  # int64: more than one thread runs
TRACE_NEXT = layout.LAUNCH_MEMORY + 8  # pointer: where the next entry of the trace goes
TRACE_END = layout.LAUNCH_MEMORY + 16  # pointer: behind the room for entries
TRACE_DRAIN = layout.LAUNCH_MEMORY + 24  # pointer: a function of the launch block that empties the trace

SAFE_LINE = layout.LAUNCH_MEMORY + 32  # int64: which of the safe words to store to are this thread's
LOCK = layout.LAUNCH_MEMORY + 40  # pointer: an int64 that threads share, 1 while one of them adds floats
OWN_LOCK = layout.LAUNCH_MEMORY + 48  # int64: what LOCK points at where no thread shares one

# Of sim/fences.py: pointers to its tables, and to the number of releases, an int32 that threads share.
FENCE_RELEASED, FENCE_PREVIOUS, FENCE_ACQUIRED, FENCE_CLOCK = (layout.LAUNCH_MEMORY + 56 + 8 * i for i in range(4))
OWN_CLOCK = layout.LAUNCH_MEMORY + 88  # int64: what FENCE_CLOCK points at where no thread shares it

# An entry of the trace: int32 index of the instruction and number of the wave, int64 workgroup, int64 mask of the
# lanes, int64 bytes of a lane, then the addresses.
TRACE_BYTES = 32 + 8 * layout.LANES

# Behind the end of the arena: words for lanes that access nothing. Zeros to load, words for atomics, and words to
# store to, of which every thread has its own.
SAFE_LOAD, SAFE_UPDATE, SAFE_STORE, SAFE_STORES = 0, 256, 1024, 32
SAFE_BYTES = SAFE_STORE + 64 * SAFE_STORES

# Bytes at the end of a workgroup's stride of local memory for lanes that are off.
SPARE_LOCAL = 64


_lines = itertools.count()


def local_stride(size: int) -> int:
    """Bytes from one workgroup's local memory of `size` bytes to the next one's."""
    return 64 * (-(-(size + SPARE_LOCAL) // 64) | 1)


def prepare(memory: Memory) -> None:
    """Sets the cells of the words behind the arena."""
    states = np.zeros(SAFE_BYTES // 4, np.uint32)
    states[: SAFE_UPDATE // 4] = rules.READY | rules.INPUT
    states[SAFE_UPDATE // 4 : SAFE_STORE // 4] = rules.READY | rules.owner(rules.UPDATE, rules.MANY)
    states[SAFE_STORE // 4 :] = rules.WHOLE_WORD
    memory.set_spare_cells(states)


def fill(block: npt.NDArray[np.uint8], memory: Memory, threads: int) -> None:
    """Writes what the memory handlers need into a launch block."""
    prepare(memory)
    words = {
        layout.SEGMENT_GROUPS: memory.groups.ctypes.data,
        layout.SEGMENT_WIDTH: memory.width,
        layout.ARENA: memory.base,
        layout.ARENA_END: memory.base + memory.size,
        layout.CELL_DISTANCE: memory.distance,
        SHARED: int(threads > 1),
        SAFE_LINE: next(_lines) % SAFE_STORES,
        LOCK: block.ctypes.data + OWN_LOCK,
        FENCE_RELEASED: memory.fences.released.ctypes.data,
        FENCE_PREVIOUS: memory.fences.previous.ctypes.data,
        FENCE_ACQUIRED: memory.fences.acquired.ctypes.data,
        FENCE_CLOCK: block.ctypes.data + OWN_CLOCK,
    }
    for offset, value in words.items():
        block[offset : offset + 8].view(np.int64)[0] = value
