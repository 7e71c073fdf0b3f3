"""Ops of the host plan: symbols, buffers and launches, from level `gpu` (or `loops`) on."""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect.fields import Operand
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp, single_result
from spconv_compiler.dialect.types import buffer_type, is_buffer

# Numbers that are known only at run time, in the order of the symbols of every size and grid map:
# voxels, cells of the padded box times batches, and host threads; where an op relates two coordinate sets, `rows` are
# the voxels of the fine one, and those of the coarse one come last. A map may leave the last symbol out.
SIZE_SYMBOLS = ("rows", "cells", "threads", "coarse_rows")
_OF_ONE_SET = SIZE_SYMBOLS[:3]
# Numbers that kernels take as arguments: the sizes above and the box that packs a coordinate into a key:
# key = ((b·extent_z + z − min_z)·extent_y + y − min_y)·extent_x + x − min_x, halo included in min and extent.
# Between two sets kernels of a GPU take the box of the coarse set instead, without halo, and `cells` are its cells.
# `out_` symbols are the box of the coordinates that spconv.output_coords makes, without halo.
# `capacity` is the present size of the growable buffer among a launch's arguments. `order` and `coarse_order` are 0, or
# the address of the rows of a set in the order of their keys.
BOX = ("min_z", "min_y", "min_x", "extent_z", "extent_y", "extent_x")
OUT_BOX = tuple(f"out_{name}" for name in BOX)
SYMBOLS = (*SIZE_SYMBOLS, *BOX, "batches", *OUT_BOX, "capacity", "order", "coarse_order")
# What a launch's result depends on: the driver reuses it while that does not change. "fine" and "coarse" sort a set,
# "coords" finds the outputs, "decode" makes their coordinates, "map" relates two sets, "pairs" are what a gemm or a
# pool runs over.
GROUPS = ("fine", "coarse", "coords", "decode", "map", "pairs", "weights", "output")


def _size_rules(what: str, attribute: ir.Attribute, *, least: bool = False) -> Iterable[str]:
    """A count over the symbols; with `least`, several of which the smallest holds."""
    fits = False
    if isinstance(attribute, ir.AffineMapAttr):
        map_ = ir.AffineMapAttr(attribute).value
        counts_fit = len(map_.results) >= 1 if least else len(map_.results) == 1
        sizes_fit = map_.n_symbols in (len(_OF_ONE_SET), len(SIZE_SYMBOLS))
        fits = map_.n_dims == 0 and sizes_fit and counts_fit
    if not fits:
        counts = "count, …, of which the least holds" if least else "count"
        symbols, last = ", ".join(_OF_ONE_SET), SIZE_SYMBOLS[-1]
        yield f"{what} is {attribute}; accepted: affine_map<()[{symbols}] -> ({counts})>, or with {last} too"


@register_operation(SpconvDialect)
class SymbolOp(SpconvOp):
    """A number known when the plan is run: one of SYMBOLS, as i32 or i64."""

    OPERATION_NAME = "spconv.symbol"

    def verify(self) -> Iterable[str]:
        name = ir.StringAttr(self.attribute("name")).value
        if name not in SYMBOLS:
            yield f'symbol "{name}"; accepted: {", ".join(SYMBOLS)}'
        if str(self.operation.results[0].type) not in ("i32", "i64"):
            yield f"symbol of type {self.operation.results[0].type}; accepted: i32, i64"


@register_operation(SpconvDialect)
class AllocOp(SpconvOp):
    """A buffer that exists while the plan runs (or while a cached group lives). Contents start undefined.

    size: elements, as affine_map<()[rows, cells, threads] -> (count)>; see size_map.
    grows (optional, unit): size is a guess; a kernel that needs more writes nothing beyond it and returns the
    number of elements it needs, upon which the plan allocates that many and runs the kernel again (CPU only).
    """

    OPERATION_NAME = "spconv.alloc"
    PURE = False

    def verify(self) -> Iterable[str]:
        yield from _size_rules("size", self.attribute("size"))


@register_operation(SpconvDialect)
class ArgumentOp(SpconvOp):
    """A buffer or a symbol as a kernel argument, type-erased."""

    OPERATION_NAME = "spconv.argument"

    value = Operand(0)

    def verify(self) -> Iterable[str]:
        type_ = self.value.type
        if not is_buffer(type_) and str(type_) not in ("i32", "i64"):
            yield f"passes {type_}; accepted: a buffer, i32 or i64"


@register_operation(SpconvDialect)
class LaunchOp(SpconvOp):
    """Runs a kernel: `kernel` is @module::@kernel on a GPU, @function on the CPU.

    grid: workgroups per axis, an array of one to three size maps, each with one result or several of which the
    least holds (as in affine.min); empty on the CPU.
    block (optional): lanes per workgroup. group (optional): one of GROUPS.
    """

    OPERATION_NAME = "spconv.launch"
    PURE = False

    @property
    def arguments(self) -> list[ir.Value]:
        """The buffers and symbols behind the type-erased operands."""
        return [ArgumentOp(operand.owner).value for operand in self.operation.operands]

    def verify(self) -> Iterable[str]:
        grid = self.attribute("grid")
        if not isinstance(grid, ir.ArrayAttr) or len(grid) > 3:
            yield f"grid is {grid}; accepted: an array of at most three affine maps"
            return
        for axis in grid:
            yield from _size_rules("grid", axis, least=True)
        kernel = self.attribute("kernel")
        if not isinstance(kernel, (ir.SymbolRefAttr, ir.FlatSymbolRefAttr)):
            yield f"kernel is {kernel}; accepted: a symbol, such as @kernels::@name"
        block = self.attribute("block")
        if block is not None and (not isinstance(block, ir.IntegerAttr) or block.value < 1):
            yield f"block is {block}; accepted: an integer of at least 1"
        group = self.attribute("group")
        if group is not None and (not isinstance(group, ir.StringAttr) or group.value not in GROUPS):
            yield f"group is {group}; accepted: {', '.join(GROUPS)}"


def symbol(name: str, type_: ir.Type) -> ir.Value:
    """Builds a `spconv.symbol`."""
    return single_result(SymbolOp.create([type_], [], {"name": ir.StringAttr.get(name)}))


def size_map(text: str) -> ir.Attribute:
    """`affine_map<()[rows, cells, threads] -> (text)>`, as in size_map("rows ceildiv 256").

    A text that counts rows of the coarse set gives a map of all SIZE_SYMBOLS.
    """
    symbols = SIZE_SYMBOLS if SIZE_SYMBOLS[-1] in text else _OF_ONE_SET
    return ir.Attribute.parse(f"affine_map<()[{', '.join(symbols)}] -> ({text})>")


def alloc(name: str, element: ir.Type, size: str, *, grows: bool = False) -> ir.Value:
    """Builds a `spconv.alloc` of `size` elements, as in alloc("table", i32, "rows * 27")."""
    attributes = {
        "name": ir.StringAttr.get(name),
        "size": size_map(size),
        "grows": ir.UnitAttr.get() if grows else None,
    }
    return single_result(AllocOp.create([buffer_type(element)], [], attributes))


def launch(
    kernel: ir.Attribute, arguments: list[ir.Value], *, group: str, grid: list[str] | None = None, block: int = 1
) -> None:
    """Builds a `spconv.launch` and the `spconv.argument` of each of its arguments."""
    erased = ir.DynamicType.get("spconv.argument", [])
    LaunchOp.create(
        [],
        [single_result(ArgumentOp.create([erased], [argument])) for argument in arguments],
        {
            "kernel": kernel,
            "grid": ir.ArrayAttr.get([size_map(axis) for axis in grid or []]),
            "block": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), block),
            "group": ir.StringAttr.get(group),
        },
    )
