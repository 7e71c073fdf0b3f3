"""Kernels whose buffers become pointers: the signature, and what loads and stores through an argument say of it."""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import (
    TileAddressOp,
    TileAtomicOp,
    TileBoundOp,
    TileCopyGroupOp,
    TileCopyOp,
    TileCopyWaitOp,
    TileFetchAddOp,
    TileLoadDeviceOp,
    TileLoadOp,
    TileStoreDeviceOp,
    TileStoreOp,
)
from spconv_compiler.dialect.types import element_type, is_buffer
from spconv_compiler.passes.base import walk
from spconv_compiler.passes.kernel_builder import bits, i64

_READS = (TileLoadOp, TileLoadDeviceOp, TileCopyOp, TileAddressOp)
_WRITES = (TileStoreOp, TileStoreDeviceOp)
_CHANGES = (TileAtomicOp, TileFetchAddOp)
_NEITHER = (TileBoundOp, TileCopyGroupOp, TileCopyWaitOp)
MEMORY_OPS = (*_READS, *_WRITES, *_CHANGES, *_NEITHER)
ALIGNMENT = 16


def bytes_of(type_: ir.Type) -> int:
    """Bytes of an element or a vector."""
    lanes = ir.VectorType(type_).shape[0] if isinstance(type_, ir.VectorType) else 1
    return lanes * bits(type_) // 8


class KernelPointers:
    """One gpu.func on its way from buffers to pointers.

    The buffers of a launch do not overlap and start at multiples of 16 bytes.

    Attributes:
        ops: its memory ops, in program order.
        elements: element type of each buffer argument.
        read, written: the arguments that are.
    """

    def __init__(self, function: ir.OpView) -> None:
        self.function, self.entry = function, function.operation.regions[0].blocks[0]
        self.elements = {arg: element_type(arg.type) for arg in self.entry.arguments if is_buffer(arg.type)}
        self.ops = [op for op in walk(function.operation) if isinstance(op, MEMORY_OPS)]
        self.read: set[ir.Value] = set()
        self.written: set[ir.Value] = set()
        for op in self.ops:
            self._note(op)

    def _note(self, op: ir.OpView) -> None:
        """Instructions that take an address read: those that write have ops of their own."""
        if isinstance(op, _READS):
            self.read.add(argument_of(op.operation.operands[0]))
        elif not isinstance(op, _NEITHER):
            self.written.add(argument_of(op.operation.operands[1]))
        if isinstance(op, _CHANGES):
            self.read.add(argument_of(op.operation.operands[1]))
        if isinstance(op, TileLoadDeviceOp):
            # It changes while the kernel runs, by whichever workgroup.
            self.written.add(argument_of(op.operation.operands[0]))

    def change_signature(self) -> None:
        """Buffers become !llvm.ptr<1> with all that is known of them."""
        attributes = []
        for argument in self.entry.arguments:
            attributes.append(ir.DictAttr.get(self._facts(argument)))
            if argument in self.elements:
                argument.set_type(ir.Type.parse("!llvm.ptr<1>"))
        operation = self.function.operation
        # Behind the arguments the entry block has the workgroup's memory, which is no part of the signature.
        count = len(ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value).inputs)
        types = [argument.type for argument in list(self.entry.arguments)[:count]]
        operation.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))
        operation.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes[:count])

    def _facts(self, argument: ir.Value) -> dict[str, ir.Attribute]:
        if argument not in self.elements:
            return {}
        facts: dict[str, ir.Attribute] = {
            f"llvm.{name}": ir.UnitAttr.get() for name in ("noalias", "noundef", "nonnull")
        }
        facts["llvm.align"] = ir.IntegerAttr.get(i64(), ALIGNMENT)
        if argument not in self.written:
            facts["llvm.readonly"] = ir.UnitAttr.get()
        elif argument not in self.read:
            facts["llvm.writeonly"] = ir.UnitAttr.get()
        return facts


def argument_of(buffer: ir.Value) -> ir.Value:
    """The kernel argument behind a buffer value."""
    while not isinstance(buffer.owner, ir.Block):
        buffer = buffer.owner.operation.operands[0]
    return buffer
