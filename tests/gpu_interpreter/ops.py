"""What each op of level gpu means, for all lanes at once."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.bindings import ir
from spconv_compiler.reference import round_to

from .launch import Launch, element, handles, pick, width
from .memory import Array, Bounded, Buffer, Fault, Shared, storage

WAVE = 64
# What a lane receives from a lane that does not exist: recognisable, and wrong in every sum.
GARBAGE = 0x5EADBEEF
_UNSIGNED = {np.dtype(np.int32): np.uint32, np.dtype(np.int64): np.uint64}


def _unsigned(value: Any) -> Any:
    array = np.asarray(value)
    return array.view(_UNSIGNED[array.dtype])


@handles("arith.constant")
def _constant(_: Launch, op: ir.OpView, active: Array) -> list[Any]:
    type_, attribute = op.operation.results[0].type, op.operation.attributes["value"]
    if isinstance(type_, ir.VectorType):
        attribute = ir.DenseElementsAttr(attribute).get_splat_value()
    kind = ir.FloatAttr if storage(element(type_)) is np.float32 else ir.IntegerAttr
    value = attribute.value if hasattr(attribute, "value") else kind(attribute).value
    lanes = width(type_)
    return [np.full(lanes, value, storage(element(type_))) if lanes > 1 else storage(element(type_))(value)]


def _integers(name: str, function: Callable[[Any, Any], Any], *, unsigned: bool = False) -> None:
    @handles(f"arith.{name}")
    def run(launch: Launch, op: ir.OpView, active: Array, left: Any, right: Any) -> list[Any]:
        with np.errstate(over="ignore", divide="ignore"):
            if not unsigned:
                result = function(np.asarray(left), np.asarray(right))
            else:
                result = np.asarray(function(_unsigned(left), _unsigned(right))).view(np.asarray(left).dtype)
        if name in ("addi", "muli") and "nuw" in str(op.operation.attributes["overflowFlags"]):
            _check_wrap(launch, function, left, right, result, active)
        return [result]


def _check_wrap(
    launch: Launch, function: Callable[[Any, Any], Any], left: Any, right: Any, result: Any, active: Array
) -> None:
    """Raises when an active lane's sum or product promises not to wrap, as unsigned, and does."""
    left, right, result = _unsigned(left), _unsigned(right), _unsigned(result)
    if function(int(left.max(initial=0)), int(right.max(initial=0))) < 2 ** (8 * result.itemsize):
        return
    exact = function(left.astype(object), right.astype(object))
    if (launch.full(np.asarray(exact != result.astype(object))) & active).any():
        raise Fault("a sum or product that promises not to wrap does")


def _divisor(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def divide(left: Any, right: Any) -> Any:
        if np.any(right == 0):
            raise Fault("division by zero")
        return function(left, right)

    return divide


for _name, _function in {
    "addi": operator.add,
    "subi": operator.sub,
    "muli": operator.mul,
    "andi": operator.and_,
    "ori": operator.or_,
    "xori": operator.xor,
    "minsi": np.minimum,
    "maxsi": np.maximum,
}.items():
    _integers(_name, _function)
for _name, _function in {
    "divui": _divisor(operator.floordiv),
    "remui": _divisor(operator.mod),
    "shli": operator.lshift,
    "shrui": operator.rshift,
    "minui": np.minimum,
    "maxui": np.maximum,
}.items():
    _integers(_name, _function, unsigned=True)


_INTEGER_ORDER = ("eq", "ne", "lt", "le", "gt", "ge", "lt", "le", "gt", "ge")
_FLOAT_ORDER = {1: "eq", 2: "gt", 3: "ge", 4: "lt", 5: "le"}


@handles("arith.cmpi")
def _cmpi(_: Launch, op: ir.OpView, active: Array, left: Any, right: Any) -> list[Any]:
    predicate = ir.IntegerAttr(op.operation.attributes["predicate"]).value
    if predicate >= 6:
        left, right = _unsigned(left), _unsigned(right)
    return [getattr(operator, _INTEGER_ORDER[predicate])(left, right)]


@handles("arith.cmpf")
def _cmpf(_: Launch, op: ir.OpView, active: Array, left: Any, right: Any) -> list[Any]:
    predicate = ir.IntegerAttr(op.operation.attributes["predicate"]).value
    return [getattr(operator, _FLOAT_ORDER[predicate])(left, right)]


@handles("arith.select")
def _select(_: Launch, op: ir.OpView, active: Array, condition: Any, true: Any, false: Any) -> list[Any]:
    return [pick(condition, true, false)]


@handles("arith.extsi", "arith.index_cast", "arith.trunci")
def _signed_cast(_: Launch, op: ir.OpView, active: Array, value: Any) -> list[Any]:
    return [np.asarray(value).astype(storage(str(op.operation.results[0].type)))]


@handles("arith.extui", "arith.index_castui")
def _unsigned_cast(_: Launch, op: ir.OpView, active: Array, value: Any) -> list[Any]:
    value = np.asarray(value)
    wide = value if value.dtype == bool else _unsigned(value)
    return [wide.astype(storage(str(op.operation.results[0].type)))]


@handles("arith.truncf", "arith.extf")
def _float_cast(_: Launch, op: ir.OpView, active: Array, value: Any) -> list[Any]:
    return [round_to(np.asarray(value), element(op.operation.results[0].type))]


@handles("math.ctpop")
def _popcount(_: Launch, op: ir.OpView, active: Array, value: Any) -> list[Any]:
    value = np.asarray(value)
    octets = np.ascontiguousarray(value).reshape(*value.shape, 1).view(np.uint8)
    return [np.unpackbits(octets, axis=-1).sum(axis=-1).astype(value.dtype)]


@handles("vector.extract")
def _extract(_: Launch, op: ir.OpView, active: Array, value: Any) -> list[Any]:
    (position,) = ir.DenseI64ArrayAttr(op.operation.attributes["static_position"])
    return [np.asarray(value)[..., position]] if width(op.operation.operands[0].type) > 1 else [value]


@handles("vector.from_elements")
def _from_elements(launch: Launch, op: ir.OpView, active: Array, *values: Any) -> list[Any]:
    if len(values) == 1:
        return [values[0]]
    return [np.stack([launch.full(value) for value in values], axis=-1)]


@handles("vector.broadcast")
def _broadcast(launch: Launch, op: ir.OpView, active: Array, value: Any) -> list[Any]:
    lanes = width(op.operation.results[0].type)
    return [np.repeat(launch.full(value)[:, None], lanes, axis=1)] if lanes > 1 else [value]


@handles("gpu.thread_id")
def _thread_id(launch: Launch, op: ir.OpView, active: Array) -> list[Any]:
    if "x" not in str(op.operation.attributes["dimension"]):
        return [np.int64(0)]
    return [launch.lanes % launch.block]


@handles("gpu.block_id")
def _block_id(launch: Launch, op: ir.OpView, active: Array) -> list[Any]:
    axis = next(n for n, name in enumerate("xyz") if f"dim {name}" in str(op.operation.attributes["dimension"]))
    group = launch.lanes // launch.block
    return [group // int(np.prod(launch.grid[:axis])) % launch.grid[axis]]


@handles("gpu.barrier")
def _barrier(launch: Launch, op: ir.OpView, active: Array) -> list[Any]:
    if "subgroup" in str(op.operation.attributes["scope"]):
        waves = active.reshape(-1, WAVE)
        if (waves.any(axis=1) != waves.all(axis=1)).any():
            raise Fault("a wave's barrier that only some of its lanes reach")
        return []
    reached = active.reshape(-1, launch.block)
    if (reached.any(axis=1) != reached.all(axis=1)).any():
        raise Fault("a barrier that only some lanes of a workgroup reach")
    launch.epoch += 1
    return []


@handles("gpu.ballot")
def _ballot(launch: Launch, op: ir.OpView, active: Array, value: Any) -> list[Any]:
    bits = (launch.full(value) & active).reshape(-1, WAVE)
    masks = (bits.astype(np.uint64) << np.arange(WAVE, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    return [np.repeat(masks, WAVE).view(np.int64)]


@handles("gpu.shuffle")
def _shuffle(launch: Launch, op: ir.OpView, active: Array, value: Any, offset: Any, size: Any) -> list[Any]:
    if np.any(np.asarray(size) != WAVE):
        raise Fault(f"a shuffle over {size} lanes; waves have {WAVE}")
    mode, lane, offset = str(op.operation.attributes["mode"]), launch.lanes % WAVE, launch.full(offset)
    source = {"idx": offset, "up": lane - offset, "xor": lane ^ offset}[mode.split()[-1].rstrip(">")]
    inside = (source >= 0) & (source < WAVE)
    flat = np.arange(len(lane)) - lane + np.where(inside, source, 0)
    received = np.where(inside & active[flat], launch.full(value)[flat], GARBAGE)
    # The validity flag that the target computes is always true; nothing may rely on it.
    return [received.astype(np.int32), np.ones(len(launch.lanes), bool)]


@handles("memref.load")
def _shared_load(launch: Launch, op: ir.OpView, active: Array, memory: Shared, index: Any) -> list[Any]:
    lanes = launch.lanes[active]
    cells = memory.cells(launch.full(index)[active], lanes // launch.block)
    result = np.zeros(len(launch.lanes), np.int32)
    result[active] = memory.load(cells, lanes // WAVE, launch.epoch)
    return [result]


@handles("memref.store")
def _shared_store(launch: Launch, op: ir.OpView, active: Array, value: Any, memory: Shared, index: Any) -> list[Any]:
    lanes = launch.lanes[active]
    cells = memory.cells(launch.full(index)[active], lanes // launch.block)
    memory.store(cells, lanes // WAVE, launch.epoch, launch.full(value)[active])
    return []


def _elements(launch: Launch, index: Any, active: Array) -> Array:
    """Element numbers of the active lanes: i32 indices are unsigned, i64 ones signed."""
    chosen = launch.full(index)[active]
    return chosen.view(np.uint32).astype(np.int64) if chosen.dtype == np.int32 else chosen


@handles("spconv.tile_bound")
def _bound(launch: Launch, op: ir.OpView, active: Array, buffer: Buffer, elements: Any) -> list[Any]:
    counts = np.unique(launch.full(elements)[active])
    if len(counts) != 1 or counts[0] > len(buffer.data):
        raise Fault(f"{buffer.name}: bound to {counts} elements of {len(buffer.data)}")
    return [Bounded(buffer, int(counts[0]))]


@handles("spconv.tile_load")
def _tile_load(launch: Launch, op: ir.OpView, active: Array, memory: Any, index: Any) -> list[Any]:
    count, chosen, lanes = width(op.operation.results[0].type), _elements(launch, index, active), launch.lanes[active]
    buffer, inside = memory, np.ones(len(chosen), bool)
    if isinstance(memory, Bounded):
        buffer, inside = memory.buffer, chosen + count <= memory.elements
        if ((chosen < memory.elements) & ~inside).any():
            raise Fault(f"{buffer.name}: a vector that is half inside")
    shape = (len(launch.lanes), count) if count > 1 else (len(launch.lanes),)
    result = np.zeros(shape, buffer.data.dtype)
    result[np.flatnonzero(active)[inside]] = buffer.load(chosen[inside], lanes[inside], count)
    return [result]


@handles("spconv.tile_store")
def _tile_store(launch: Launch, op: ir.OpView, active: Array, value: Any, memory: Buffer, index: Any) -> list[Any]:
    count = width(op.operation.operands[0].type)
    rows = launch.full(value, count)[active]
    memory.store(_elements(launch, index, active), launch.lanes[active], rows, count)
    return []


@handles("spconv.tile_atomic")
def _tile_atomic(launch: Launch, op: ir.OpView, active: Array, value: Any, memory: Buffer, index: Any) -> list[Any]:
    kind = ir.StringAttr(op.operation.attributes["kind"]).value
    memory.atomic(kind, _elements(launch, index, active), np.ascontiguousarray(launch.full(value)[active]))
    return []


@handles("spconv.tile_fetch_add")
def _fetch_add(launch: Launch, op: ir.OpView, active: Array, value: Any, memory: Buffer, index: Any) -> list[Any]:
    result = np.zeros(len(launch.lanes), memory.data.dtype)
    result[active] = memory.fetch_add(_elements(launch, index, active), launch.full(value)[active])
    return [result]


@handles("spconv.tile_load_device")
def _load_device(launch: Launch, op: ir.OpView, active: Array, memory: Buffer, index: Any) -> list[Any]:
    result = np.zeros(len(launch.lanes), memory.data.dtype)
    result[active] = memory.device(_elements(launch, index, active))
    return [result]


@handles("spconv.tile_store_device")
def _store_device(launch: Launch, op: ir.OpView, active: Array, value: Any, memory: Buffer, index: Any) -> list[Any]:
    memory.device(_elements(launch, index, active), launch.full(value)[active])
    return []


@handles("spconv.tile_mma")
def _tile_mma(launch: Launch, op: ir.OpView, active: Array, a: Any, b: Any, c: Any) -> list[Any]:
    """Fragments of the CDNA matrix instructions.

    Of A, lane l holds row l % m, elements k = held·(l / m) + j; of B likewise column l % n; of C and D column l % n,
    rows held·(l / n) + v.
    """
    m, n, k = ir.DenseI64ArrayAttr(op.operation.attributes["shape"])
    waves = active.reshape(-1, WAVE)
    if (waves.any(axis=1) != waves.all(axis=1)).any():
        raise Fault("a matrix instruction that only some lanes of a wave reach")
    held, sums = m * k // WAVE, m * n // WAVE
    groups = WAVE // m

    def operand(value: Any) -> Array:
        rows = launch.full(value, held).reshape(-1, groups, m, held)
        return np.where(waves[:, 0, None, None], rows.transpose(0, 2, 1, 3).reshape(-1, m, k), 0).astype(np.float64)

    product = operand(a) @ operand(b).transpose(0, 2, 1)
    spread = product.reshape(-1, groups, sums, n).transpose(0, 1, 3, 2).reshape(-1, sums)
    return [(launch.full(c, sums) + spread).astype(np.float32)]
