"""Turns the function around the launches into a host plan: buffers in, buffers out, no casts left.

Before:
    func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, …) -> tensor<?x32xf32> {
      %acc = "spconv.alloc"() {name = "out", …} : () -> !spconv.buffer<f32>
      "spconv.launch"(…)
      %out = builtin.unrealized_conversion_cast %acc : !spconv.buffer<f32> to tensor<?x32xf32>
      return %out
After:
    func.func @conv(%coords: !spconv.buffer<i32>, %features: !spconv.buffer<bf16>, …, %acc: !spconv.buffer<f32>) {
      "spconv.launch"(…)
      return

Every argument carries `spconv.name`, the one that it had if all of them had one. Needs stage ops gone; gives level gpu
or loops. Fails when a result is not a buffer that the function allocates, or when a stage value is still in use.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import func, ir
from spconv_compiler.dialect import AllocOp
from spconv_compiler.dialect.types import is_buffer, type_name
from spconv_compiler.passes.base import Pass, defining_op, walk
from spconv_compiler.passes.kernel_module import CAST, buffers_of, stored_as

NAME = "spconv.name"
# What follows the name of a coordinate set in the name of the word on the device that counts its rows.
COUNT_SUFFIX = "_count"
# What the arguments of a convolution are called, in order, unless they have names; a function with others gets numbers.
ARGUMENT_NAMES = ("coords", "features", "weight", "bias")


@dataclasses.dataclass(frozen=True)
class ConvertHostToPlan(Pass):
    """See the module."""

    name: ClassVar[str] = "convert-host-to-plan"

    def run(self, module: ir.Module) -> None:
        for op in list(module.body.operations):
            if isinstance(op, func.FuncOp) and len(op.regions[0].blocks):
                self._convert(op)

    def _convert(self, function: func.FuncOp) -> None:
        block = function.regions[0].blocks[0]
        names = argument_names(function, len(block.arguments))
        terminator = block.operations[len(block.operations) - 1]
        outputs = [self._output_buffers(function, value) for value in terminator.operands]
        with ir.InsertionPoint(terminator), terminator.operation.location:
            func.ReturnOp([])
        terminator.operation.erase()
        for number, allocs in enumerate(outputs):
            name = "out" if len(outputs) == 1 else f"out{number}"
            for alloc, suffix in zip(allocs, ("", COUNT_SUFFIX), strict=False):
                argument = block.add_argument(alloc.results[0].type, alloc.location)
                alloc.results[0].replace_all_uses_with(argument)
                alloc.operation.erase()
                names.append(name + suffix)
        self._drop_casts(function, block)
        types = [argument.type for argument in block.arguments]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [ir.DictAttr.get({NAME: ir.StringAttr.get(name)}) for name in names]
        )

    def _output_buffers(self, function: func.FuncOp, value: ir.Value) -> list[ir.OpView]:
        """The allocation behind a result, and for coordinates on a GPU that of their number."""
        try:
            buffers = [] if defining_op(value) is None else buffers_of(value)
        except ValueError as error:
            self.fail(function, str(error), "run the convert-*-to-gpu or convert-*-to-loops passes first")
        allocs = [defining_op(buffer) for buffer in buffers]
        most = 2 if type_name(value.type) == "spconv.coords" else 1
        if not 1 <= len(allocs) <= most or not all(isinstance(alloc, AllocOp) for alloc in allocs):
            self.fail(
                function,
                f"the result {value.type} is not a buffer that this function allocates",
                "supported: functions that return the output of a convolution",
            )
        return [alloc for alloc in allocs if alloc is not None]

    def _drop_casts(self, function: func.FuncOp, block: ir.Block) -> None:
        """Erases casts from last to first; those of arguments turn the argument itself into a buffer."""
        casts = [op for op in walk(function.operation) if op.operation.name == CAST]
        for cast in reversed(casts):
            source = cast.operation.operands[0]
            if isinstance(source.owner, ir.Block) and not is_buffer(source.type):
                source.set_type(stored_as(source.type))
                cast.operation.results[0].replace_all_uses_with(source)
            elif list(cast.operation.results[0].uses):
                self.fail(cast, f"the stage value {cast.operation.results[0].type} is still in use")
            cast.operation.erase()
        for argument in block.arguments:
            if not str(argument.type).startswith("!spconv.buffer"):
                argument.set_type(stored_as(argument.type))


def argument_names(function: ir.Operation | ir.OpView, count: int) -> list[str]:
    """The names of a function's `count` arguments: those that it gives them, or the usual ones."""
    attributes = function.attributes
    given = [ir.DictAttr(entry) for entry in attributes["arg_attrs"]] if "arg_attrs" in attributes else []
    if given and all(NAME in entry for entry in given):
        return [ir.StringAttr(entry[NAME]).value for entry in given]
    if 3 <= count <= len(ARGUMENT_NAMES):
        return list(ARGUMENT_NAMES[:count])
    return [f"arg{number}" for number in range(count)]
