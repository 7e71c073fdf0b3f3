"""Words for kernels of waves: ids, index arithmetic that cannot wrap, buffer access, scans.

`plus` and `times` promise that the unsigned result does not wrap; only through them may a lowering split an
index into a part per lane, a part per wave and a constant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from spconv_compiler.bindings import arith, gpu, ir, math, memref, vector
from spconv_compiler.dialect import tile
from spconv_compiler.dialect.types import element_type
from spconv_compiler.passes.kernel_builder import Operand, V, const, i32, i64, if_, like, unwrap, vec

_WORKGROUP = "#gpu.address_space<workgroup>"


def _nuw() -> ir.Attribute:
    return ir.Attribute.parse("#arith.overflow<nuw>")


def plus(first: V, *terms: Operand) -> V:
    """The sum, promised not to wrap as unsigned."""
    total = first
    for term in terms:
        if isinstance(term, V) or term != 0:
            total = V(arith.addi(total.value, like(term, total.type).value, overflow_flags=_nuw()))
    return total


def times(first: V, factor: Operand) -> V:
    """The product, promised not to wrap as unsigned."""
    if not isinstance(factor, V) and factor == 1:
        return first
    return V(arith.muli(first.value, like(factor, first.type).value, overflow_flags=_nuw()))


def thread() -> V:
    """i32: this lane's number in its workgroup."""
    return V(gpu.thread_id(gpu.Dimension.x)).to(i32())


# Numbers that bodies inside `numbered` take for their workgroup's own, the innermost last.
_numbers: list[V] = []


@contextlib.contextmanager
def numbered(number: V) -> Iterator[None]:
    """In this block `block()` is `number`: for a kernel whose workgroups do the work of several launches."""
    _numbers.append(number)
    try:
        yield
    finally:
        _numbers.pop()


def block(axis: str = "x") -> V:
    """i32: this workgroup's number along an axis of the grid.

    Take it once, at the top of a kernel: where it is taken in two branches the code generator merges them into a
    value per lane.
    """
    if _numbers and axis == "x":
        return _numbers[-1]
    return V(gpu.block_id(getattr(gpu.Dimension, axis))).to(i32())


class Part(V):
    """A buffer from element `base` (i32) on; everything here that takes a buffer takes a part of one."""

    __slots__ = ("base",)
    base: V

    def __init__(self, buffer: V, base: V) -> None:
        super().__init__(buffer.value)
        self.base = plus(buffer.base, base) if isinstance(buffer, Part) else base


def _place(buffer: V, index: V) -> ir.Value:
    """An index into the whole buffer."""
    return (plus(buffer.base, index) if isinstance(buffer, Part) else index).value


def load(buffer: V, index: V, lanes: int = 1) -> V:
    """Element `index` of a buffer, or a vector of `lanes` elements from there on, aligned to its size."""
    element = element_type(buffer.type)
    return V(tile.tile_load(buffer.value, _place(buffer, index), element if lanes == 1 else vec(lanes, element)))


def store(value: V, buffer: V, index: V) -> None:
    """buffer[index …] = value, aligned as in load."""
    tile.tile_store(value.value, buffer.value, _place(buffer, index))


def atomic(kind: str, value: V, buffer: V, index: V) -> None:
    """buffer[index] = kind(buffer[index], value), relaxed."""
    tile.tile_atomic(kind, value.value, buffer.value, _place(buffer, index))


def fetch_add(value: V, buffer: V, index: V) -> V:
    """buffer[index] += value on i32, relaxed; what was there before."""
    return V(tile.tile_fetch_add(value.value, buffer.value, _place(buffer, index)))


def load_device(buffer: V, index: V) -> V:
    """Element `index` as other workgroups of this launch may have left it: see tile_load_device."""
    return V(tile.tile_load_device(buffer.value, _place(buffer, index)))


def store_device(value: V, buffer: V, index: V) -> None:
    """buffer[index] = value for load_device of other workgroups."""
    tile.tile_store_device(value.value, buffer.value, _place(buffer, index))


def bounded(buffer: V, elements: V) -> V:
    """The same buffer with a size: reads at or beyond `elements` (i32) give zero."""
    return V(tile.tile_bound(buffer.value, elements.to(i64()).value))


def concatenate(parts: list[V]) -> V:
    """One vector of all parts, scalars or vectors, in order."""
    if len(parts) == 1 and isinstance(parts[0].type, ir.VectorType):
        return parts[0]
    lanes: list[V] = []
    for part in parts:
        count = part.type.shape[0] if isinstance(part.type, ir.VectorType) else 0
        lanes.extend([part.lane(number) for number in range(count)] or [part])
    return V(vector.from_elements(vec(len(lanes), lanes[0].type), unwrap(lanes)))


def popcount(value: V) -> V:
    return V(math.ctpop(value.value))


def ballot(condition: V) -> V:
    """i64: bit l says whether the condition holds in lane l of this wave."""
    return V(gpu.ballot(i64(), condition.value))


def from_lane(value: V, lane: int, wave: int) -> V:
    """The value that one lane of this wave holds, in every lane."""
    return V(gpu.shuffle(value.value, const(lane, i32()).value, const(wave, i32()).value, gpu.ShuffleMode.IDX)[0])


def first_bit(value: V) -> V:
    """The number of the lowest bit that is set; the width of the type if none is."""
    return V(math.cttz(value.value))


def shuffle(value: V, lane: V, wave: int) -> V:
    """The value that lane `lane` of this wave holds; each lane may name another."""
    return V(gpu.shuffle(value.value, lane.value, const(wave, i32()).value, gpu.ShuffleMode.IDX)[0])


def flipped(value: V, bit: int, wave: int) -> V:
    """The value of the lane whose number differs in one bit, a power of two."""
    return V(gpu.shuffle(value.value, const(bit, i32()).value, const(wave, i32()).value, gpu.ShuffleMode.XOR)[0])


def scan_wave(value: V, lane: V, wave: int) -> V:
    """Inclusive prefix sum over the lanes of a wave; `lane` is this lane's number in it.

    The shuffle's own validity flag is not used: what arrives from below lane 0 is masked by lane number.
    """
    distance = 1
    while distance < wave:
        offset, width = const(distance, i32()), const(wave, i32())
        below = V(gpu.shuffle(value.value, offset.value, width.value, gpu.ShuffleMode.UP)[0])
        value = value + (lane >= distance).select(below, 0)
        distance *= 2
    return value


def shared(elements: int) -> ir.Type:
    """The type of `elements` i32 that a workgroup shares."""
    return ir.MemRefType.get([elements], i32(), memory_space=ir.Attribute.parse(_WORKGROUP))


def put(value: V, memory: V, index: V) -> None:
    memref.store(value.value, memory.value, [index.to(ir.IndexType.get()).value])


def get(memory: V, index: V) -> V:
    return V(memref.load(memory.value, [index.to(ir.IndexType.get()).value]))


def fetch_put(value: V, memory: V, index: V) -> V:
    """memory[index] += value, at once for all lanes that do so; what was there before."""
    place = index.to(ir.IndexType.get()).value
    return V(memref.atomic_rmw(arith.AtomicRMWKind.addi, value.value, memory.value, [place]))


def barrier() -> ir.Operation:
    """Waits for the workgroup; what was put before can be read by all after."""
    return gpu.barrier().operation


def wave_barrier() -> None:
    """Waits for this lane's wave; what its lanes put before can be read by all of it after.

    Where the lanes of a wave run together it costs nothing; elsewhere nothing else puts their accesses in order.
    """
    gpu.barrier(scope=ir.Attribute.parse("#gpu.barrier_scope<subgroup>"))


def scan_workgroup(value: V, memory: V, wave: int, waves: int) -> V:
    """Inclusive prefix sum over a workgroup of `waves` full waves; memory holds one i32 a wave."""
    lane, number = thread() % wave, thread() // wave
    inclusive = scan_wave(value, lane, wave)
    with if_(lane.eq(wave - 1)):
        put(inclusive, memory, number)
    barrier()
    for other in range(waves - 1):
        before = get(memory, const(other, i32()))
        inclusive = inclusive + (number > other).select(before, 0)
    return inclusive
