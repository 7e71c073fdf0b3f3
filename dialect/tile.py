"""Ops inside kernels of level `gpu`: buffer access, atomics and matrix multiply-accumulate, target-neutral.

Each lane of a wave executes them; indices count elements, not bytes. An index of type i32 promises that its
byte offset is below 2^32, which lets a target use 32-bit buffer addressing; an i64 index makes no promise.
"""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp
from spconv_compiler.dialect.types import element_type

ATOMIC_KINDS = {"fadd": ("f32",), "umin": ("i32",), "add": ("i32",), "or": ("i32",)}


def _element_rules(value: ir.Value, buffer: ir.Value) -> Iterable[str]:
    """A value is one element of the buffer, or a vector of them."""
    scalar = ir.VectorType(value.type).element_type if isinstance(value.type, ir.VectorType) else value.type
    if scalar != element_type(buffer.type):
        yield f"moves {value.type} but the buffer is {buffer.type}"


@register_operation(SpconvDialect)
class TileBoundOp(SpconvOp):
    """The same buffer, known to have `elements` elements: reads beyond give 0, writes beyond are dropped."""

    OPERATION_NAME = "spconv.tile_bound"

    def verify(self) -> Iterable[str]:
        if self.operation.operands[0].type != self.operation.results[0].type:
            yield f"changes the type {self.operation.operands[0].type} to {self.operation.results[0].type}"


@register_operation(SpconvDialect)
class TileAddressOp(SpconvOp):
    """The global address (!llvm.ptr<1>) of element `index`, for instructions of one target that take addresses."""

    OPERATION_NAME = "spconv.tile_address"

    def verify(self) -> Iterable[str]:
        if str(self.operation.results[0].type) != "!llvm.ptr<1>":
            yield f"gives {self.operation.results[0].type}; accepted: !llvm.ptr<1>"


@register_operation(SpconvDialect)
class TileLoadOp(SpconvOp):
    """value = buffer[index …]: one element, or a vector of consecutive ones.

    A vector load promises that its address is a multiple of its size (at most 16 bytes).
    """

    OPERATION_NAME = "spconv.tile_load"
    PURE = False

    def verify(self) -> Iterable[str]:
        yield from _element_rules(self.operation.results[0], self.operation.operands[0])


@register_operation(SpconvDialect)
class TileStoreOp(SpconvOp):
    """buffer[index …] = value, aligned as in tile_load."""

    OPERATION_NAME = "spconv.tile_store"
    PURE = False

    def verify(self) -> Iterable[str]:
        yield from _element_rules(self.operation.operands[0], self.operation.operands[1])


@register_operation(SpconvDialect)
class TileAtomicOp(SpconvOp):
    """buffer[index] = kind(buffer[index], value), relaxed, device scope, no result.

    kind: "fadd" on f32, "add", "or" and "umin" (unsigned minimum) on i32.
    """

    OPERATION_NAME = "spconv.tile_atomic"
    PURE = False

    @property
    def kind(self) -> str:
        return str(ir.StringAttr(self.attribute("kind")).value)

    def verify(self) -> Iterable[str]:
        value, buffer, _ = self.operation.operands
        yield from _element_rules(value, buffer)
        if str(value.type) not in ATOMIC_KINDS.get(self.kind, ()):
            yield f'kind "{self.kind}" on {value.type}; accepted: {ATOMIC_KINDS}'


@register_operation(SpconvDialect)
class TileFetchAddOp(SpconvOp):
    """old = buffer[index]; buffer[index] = old + value on i32, relaxed, device scope."""

    OPERATION_NAME = "spconv.tile_fetch_add"
    PURE = False

    def verify(self) -> Iterable[str]:
        yield from _element_rules(self.operation.operands[0], self.operation.operands[1])


@register_operation(SpconvDialect)
class TileLoadDeviceOp(SpconvOp):
    """value = buffer[index] past the caches that workgroups do not share, relaxed: one i32 or i64.

    It sees what another workgroup of the same launch has written by tile_store_device or an atomic; there is no order
    between different words.
    """

    OPERATION_NAME = "spconv.tile_load_device"
    PURE = False

    def verify(self) -> Iterable[str]:
        value = self.operation.results[0]
        yield from _element_rules(value, self.operation.operands[0])
        yield from _word_rules(value)


@register_operation(SpconvDialect)
class TileStoreDeviceOp(SpconvOp):
    """buffer[index] = value, where tile_load_device of other workgroups sees it: one i32 or i64."""

    OPERATION_NAME = "spconv.tile_store_device"
    PURE = False

    def verify(self) -> Iterable[str]:
        value, buffer, _ = self.operation.operands
        yield from _element_rules(value, buffer)
        yield from _word_rules(value)


def _word_rules(value: ir.Value) -> Iterable[str]:
    if str(value.type) not in ("i32", "i64"):
        yield f"moves {value.type}; accepted: i32, i64, which move whole"


@register_operation(SpconvDialect)
class TileMmaOp(SpconvOp):
    """d = a·b + c on a wave, each operand the fragment that one lane holds.

    shape: array<i64: m, n, k>. Which element a lane holds is the target's fragment layout (targets/).
    """

    OPERATION_NAME = "spconv.tile_mma"

    def verify(self) -> Iterable[str]:
        a, b, c = self.operation.operands
        if c.type != self.operation.results[0].type:
            yield f"accumulates {c.type} into {self.operation.results[0].type}"
        if a.type != b.type:
            yield f"multiplies {a.type} with {b.type}"
        shape = self.attribute("shape")
        if not isinstance(shape, ir.DenseI64ArrayAttr) or len(shape) != 3:
            yield f"shape is {shape}; accepted: array<i64: m, n, k>"


def tile_load(buffer: ir.Value, index: ir.Value, type_: ir.Type) -> ir.Value:
    """Builds a `spconv.tile_load`."""
    return TileLoadOp.create([type_], [buffer, index]).results[0]


def tile_store(value: ir.Value, buffer: ir.Value, index: ir.Value) -> None:
    """Builds a `spconv.tile_store`."""
    TileStoreOp.create([], [value, buffer, index])


def tile_atomic(kind: str, value: ir.Value, buffer: ir.Value, index: ir.Value) -> None:
    """Builds a `spconv.tile_atomic`."""
    TileAtomicOp.create([], [value, buffer, index], {"kind": ir.StringAttr.get(kind)})


def tile_fetch_add(value: ir.Value, buffer: ir.Value, index: ir.Value) -> ir.Value:
    """Builds a `spconv.tile_fetch_add`."""
    return TileFetchAddOp.create([value.type], [value, buffer, index]).results[0]


def tile_load_device(buffer: ir.Value, index: ir.Value) -> ir.Value:
    """Builds a `spconv.tile_load_device`."""
    return TileLoadDeviceOp.create([element_type(buffer.type)], [buffer, index]).results[0]


def tile_store_device(value: ir.Value, buffer: ir.Value, index: ir.Value) -> None:
    """Builds a `spconv.tile_store_device`."""
    TileStoreDeviceOp.create([], [value, buffer, index])


def tile_mma(shape: tuple[int, int, int], a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Builds a `spconv.tile_mma`; `c` may be any value wrapper with a `.value`."""
    accumulator = getattr(c, "value", c)
    attributes = {"shape": ir.DenseI64ArrayAttr.get(list(shape))}
    return TileMmaOp.create([accumulator.type], [a, b, c], attributes).results[0]


def tile_address(buffer: ir.Value, index: ir.Value) -> ir.Value:
    """Builds a `spconv.tile_address`."""
    return TileAddressOp.create([ir.Type.parse("!llvm.ptr<1>")], [buffer, index]).results[0]


def tile_bound(buffer: ir.Value, elements: ir.Value) -> ir.Value:
    """Builds a `spconv.tile_bound`."""
    source = getattr(buffer, "value", buffer)
    return TileBoundOp.create([source.type], [buffer, elements]).results[0]
