"""What native code and Python agree on: records, the context of a wave, the launch block, status and fault codes.

All offsets are bytes. A kernel is an array of records, one an instruction. A wave is a context; scalar registers and
the constants of the kernel lie in one array, so that both are read the same way, with a word of defined bits for each
at a fixed distance. Threads have contexts and records of their own; the launch block of a thread, too.
"""

from __future__ import annotations

import enum

from spconv_compiler.sim import cells
from spconv_compiler.sim.execute_memory import RAW_BUFFER
from spconv_compiler.sim.interpreter import BARRIER_MISSED

LANES = 64
MOST_SEGMENTS = cells.MANY
ALL = 0xFFFFFFFFFFFFFFFF
FILL = 0xFFA5FFA5

# A record: the handler, how often it ran, and up to 12 numbers (int32), the last one the instruction's index.
RECORD_BYTES = 64
HANDLER, COUNT, FIELDS = 0, 8, 16
INDEX_FIELD = 11

# The context: 128 scalar registers, then constants; their defined bits lie SCALAR_DEFINED further on.
SCALARS = 0
SCALAR_COUNT = 128
CONSTANTS = 4 * SCALAR_COUNT
SCALAR_DEFINED = 0x2040
CONSTANT_WORDS = (SCALAR_DEFINED - CONSTANTS) // 4
VCC = 4 * 106
M0 = 4 * 124
EXEC = 4 * 126

# State of the wave. int32 unless said otherwise.
STATE = 2 * SCALAR_DEFINED
SCC, SCC_DEFINED = STATE, STATE + 4  # 0 or 1 each
STATUS = STATE + 8
SLICE = STATE + 12  # taken branches that are left
EPOCH = STATE + 16  # barriers passed
WAVE = STATE + 20  # number in its workgroup
SEGMENT = STATE + 24  # number of (group, wave, epoch) in this launch; 24 bits
SLOT = STATE + 28  # place of its workgroup in the window
GROUP = STATE + 32  # int64: number of the workgroup in the launch
RESUME = STATE + 40  # pointer: the record to go on with
LAUNCH = STATE + 48  # pointer: the launch block
LDS = STATE + 56  # pointer: the workgroup's local memory
LDS_CELLS = STATE + 64  # pointer: its cells
LDS_BYTES = STATE + 72
FAULT_CODE = STATE + 76
FAULT_LANE = STATE + 80  # -1: none
RESIDENT = STATE + 84  # of the first wave of a workgroup: 1 while its slot is taken
FAULT_ADDRESS = STATE + 88  # int64
FAULT_RECORD = STATE + 96  # pointer
RAISE = STATE + 104  # pointer: the function that records a fault
MERGE = STATE + 112  # pointer: the function that merges results under EXEC
ISSUED = STATE + 120  # vector memory instructions so far, as vmcnt counts them
FLIGHTS_LANDED, FLIGHTS_ISSUED = STATE + 124, STATE + 128  # loads to LDS so far
RELEASING = STATE + 132  # the value of ISSUED with a release that no wait has covered yet, or 0
NOTED = STATE + 136  # the last release that this wave may have read of
PRIVATE = STATE + 144  # pointer: scratch memory of the wave's lanes
SCRATCH = STATE + 256  # SCRATCH_REGISTERS vector registers of room for results before they are merged under EXEC
SCRATCH_REGISTERS = 8

# Loads to LDS that are under way: a ring of entries. int32: the value of ISSUED with the load, the place of lane 0 in
# local memory, bytes of a lane; int64: the lanes.
FLIGHTS = SCRATCH + 256 * SCRATCH_REGISTERS
FLIGHT_ORDER, FLIGHT_START, FLIGHT_STEP, FLIGHT_LANES, FLIGHT_BYTES = 0, 4, 8, 16, 32
FLIGHT_COUNT = 64

# A of the last MFMA, converted: [register, part, lane], for the MFMAs behind it that have the same A.
MATRIX_ROOM = FLIGHTS + FLIGHT_BYTES * FLIGHT_COUNT
MATRIX_BYTES = 0x2000

# Vector registers (then accumulation registers): 64 defined bits each, then 256 bytes each, at multiples of 64.
VECTOR_DEFINED = MATRIX_ROOM + MATRIX_BYTES
VECTOR_BYTES = 256
MAX_VECTORS = 512
VECTORS = VECTOR_DEFINED + 8 * MAX_VECTORS


def context_bytes(vectors: int) -> int:
    """Size of a context with so many vector registers: an odd number of cache lines, so that contexts spread."""
    lines = -(-(VECTORS + VECTOR_BYTES * vectors) // 64)
    return 64 * (lines | 1)


def vector(register: int) -> int:
    """Offset of a vector register."""
    return VECTORS + VECTOR_BYTES * register


# The launch block. int64 unless said otherwise.
NEXT_GROUP = 0  # pointer: shared place in the run list, counted up by all threads
RUN_LIST = 8  # pointer: int64 numbers of workgroups
RUN_LENGTH = 16
CONTEXTS = 24  # pointer: WINDOW * GROUP_WAVES contexts
CONTEXT_BYTES = 32
WINDOW = 40  # workgroups that are resident at once
GROUP_WAVES = 48
PROGRAM = 56  # pointer: the records
SLICE_BRANCHES = 64  # taken branches of a slice
BUDGET = 72  # instructions that this thread may run
STOP = 80  # pointer: int32, shared: nonzero when a thread has found a fault
LANES_OF_GROUP = 88  # lanes of a workgroup
GRID_X, GRID_Y, GRID_Z = 96, 104, 112
GROUP_ID_REGISTERS = 120  # three int32: the scalar register that gets x, y, z, or -1; then 4 bytes of padding
KERNARG = 136  # pointer
VECTOR_COUNT = 144  # vector registers that are allocated
LDS_SIZE = 152  # bytes of local memory of a workgroup
LDS_STRIDE = 160  # bytes from one workgroup's local memory to the next one's
LDS_BASE = 168  # pointer: local memory of slot 0
LDS_CELLS_BASE = 176  # pointer: cells of slot 0, at the same stride
FAULTY = 184  # pointer: the context at fault, or null
FINISHED = 192  # workgroups that have ended
RECORDS = 200  # number of records
SEGMENT_NEXT = 208  # pointer: int64, shared: the first segment number not given out yet
SEGMENT_GROUPS = 216  # pointer: uint32 per segment, its workgroup
SEGMENT_WIDTH = 224  # segments of a workgroup between two barriers
ARENA = 232  # pointer: first byte of the arena
ARENA_END = 240  # pointer: behind its last byte
CELL_DISTANCE = 248  # the cell of the word at address a is at a + CELL_DISTANCE
LAUNCH_MEMORY = 256  # 224 bytes that belong to the memory handlers: allocations, trace buffer
PRIVATE_BASE = 480  # pointer: scratch memory of the first wave of slot 0
PRIVATE_STRIDE = 488  # from one wave's scratch memory to the next one's
PRIVATE_BYTES = 496  # of a lane
CLOCK = 504  # counts up when it is read
LAUNCH_BYTES = 512


class Status(enum.IntEnum):
    """STATUS of a wave."""

    RUNNING = 0
    AT_BARRIER = 1
    ENDED = 2
    FAULT = 3
    SLICE_OVER = 4


class Code(enum.IntEnum):
    """FAULT_CODE of a wave; FAULT_TEXT has the words."""

    NONE = 0
    SCC_UNDEFINED = 1
    VCC_UNDEFINED = 2
    EXEC_UNDEFINED = 3
    LANE_UNDEFINED = 4
    BUDGET = 5
    BARRIER_MISSED = 6
    SEGMENTS = 7
    SOURCE_UNDEFINED = 8
    LANES_OFF = 9
    MODE_CHANGES = 10
    TRAP = 11
    # Memory.
    ADDRESS_UNDEFINED = 16
    OFFSET_UNDEFINED = 17
    SCALAR_OFFSET_UNDEFINED = 18
    DESCRIPTOR_UNDEFINED = 19
    DESCRIPTOR_STRANGE = 20
    PARTLY_BEYOND = 21
    ATOMIC_UNDEFINED = 22
    PERMUTE_UNDEFINED = 23
    MEMORY = 24
    TRANSPOSED_OFF = 25
    M0_UNDEFINED = 26
    LANDING = 27
    PRIVATE_BOUNDS = 28
    PRIVATE_MISALIGNED = 29
    PRIVATE_UNWRITTEN = 30


# Texts as the numpy engine's. Faults of the codes MEMORY and LANDING are explained in faults.py.
FAULT_TEXT: dict[int, str] = {
    Code.SCC_UNDEFINED: "SCC is undefined",
    Code.VCC_UNDEFINED: "VCC is undefined",
    Code.EXEC_UNDEFINED: "EXEC becomes undefined",
    Code.BARRIER_MISSED: BARRIER_MISSED,
    Code.SOURCE_UNDEFINED: "a source is undefined",
    Code.LANES_OFF: "lanes are off",
    Code.MODE_CHANGES: "MODE changes: not supported",
    Code.LANE_UNDEFINED: "the number of the lane is undefined",
    Code.ADDRESS_UNDEFINED: "the address is undefined",
    Code.OFFSET_UNDEFINED: "the offset is undefined",
    Code.SCALAR_OFFSET_UNDEFINED: "the scalar offset is undefined",
    Code.DESCRIPTOR_UNDEFINED: "the buffer descriptor is undefined",
    Code.ATOMIC_UNDEFINED: "the data of an atomic is undefined",
    Code.PERMUTE_UNDEFINED: "the number of the lane is undefined",
    Code.DESCRIPTOR_STRANGE: f"the buffer descriptor is not a raw buffer of flags 0x{RAW_BUFFER:x} and stride 0",
    Code.TRANSPOSED_OFF: "lanes are off in a transposed read",
    Code.M0_UNDEFINED: "m0 is undefined",
    Code.PARTLY_BEYOND: "partly beyond the end of the buffer",
}
