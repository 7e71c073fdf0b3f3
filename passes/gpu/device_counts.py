"""How many rows a coordinate set has, as a word on the device: an argument of the plan, or what an earlier op wrote.

Sizes of buffers and grids are bounds that the host knows. Kernels read the number of rows itself from this word, so
that a set which a kernel has made can be used by the next one without the host's having seen it. The word of an
argument `coords` is the argument `coords_count`.
"""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.convert_host_to_plan import COUNT_SUFFIX, NAME, argument_names
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import buffers_of


def set_buffers(coords: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(rows, number of rows) of a lowered coordinate set or of a function's argument."""
    rows, *counts = buffers_of(coords)
    return rows, counts[0] if counts else _argument_count(coords)


def _argument_count(coords: ir.Value) -> ir.Value:
    """The argument with the number of rows, made at the end of the function's arguments on first use."""
    block = ir.BlockArgument(coords).owner
    function = block.owner.operation
    names = argument_names(function, len(block.arguments))
    wanted = names[ir.BlockArgument(coords).arg_number] + COUNT_SUFFIX
    if wanted in names:
        return block.arguments[names.index(wanted)]
    count = block.add_argument(buffer_type(i32()), coords.owner.owner.operation.location)
    results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    types = [argument.type for argument in block.arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, results))
    entries = [ir.DictAttr.get({NAME: ir.StringAttr.get(name)}) for name in [*names, wanted]]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(entries)
    return count
