"""Lowers buffer access in kernels to loads, stores and atomics of global memory with 64-bit addresses.

Before:
    gpu.func @k(%in: !spconv.buffer<bf16>, %n: i32) kernel {
      %v = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> vector<8xbf16>
After:
    gpu.func @k(%in: !llvm.ptr<1> {llvm.noalias, llvm.readonly, …}, %n: i32) kernel {
      %p = llvm.getelementptr %in[%wide] : (!llvm.ptr<1>, i64) -> !llvm.ptr<1>, bf16
      %v = llvm.load %p {alignment = 16} : !llvm.ptr<1> -> vector<8xbf16>

An i32 index is unsigned. tile_bound becomes a comparison: a read at or beyond the size reads element 0 in its stead,
which every buffer of a launched kernel has, and gives zero; a write there is skipped.

Needs level gpu; the other ops of kernels are left to the upstream conversion. Fails on a bounded buffer that is reached
by an atomic, an access between workgroups or an address: they check nothing.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import gpu, ir, llvm, memref
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
from spconv_compiler.passes.base import Pass, kernel_functions
from spconv_compiler.passes.gpu.kernel_pointers import ALIGNMENT, KernelPointers, argument_of, bytes_of
from spconv_compiler.passes.gpu.scheduled import gpu_target
from spconv_compiler.passes.kernel_builder import V, bits, const, gep, i32, i64, if_

_ATOMICRMW = {
    "fadd": llvm.AtomicBinOp.fadd,
    "umin": llvm.AtomicBinOp.umin,
    "add": llvm.AtomicBinOp.add,
    "or": llvm.AtomicBinOp._or,
}
_UNBOUNDED = (TileAtomicOp, TileFetchAddOp, TileLoadDeviceOp, TileStoreDeviceOp, TileAddressOp)
_RELAXED = llvm.AtomicOrdering.monotonic
_SCOPE = "device"


class _Kernel(KernelPointers):
    """The lowering of one gpu.func."""

    def __init__(self, pass_: LowerMemoryToGlobal, function: ir.OpView, wave: int) -> None:
        super().__init__(function)
        self.fail, self.wave = pass_.fail, wave

    def run(self) -> None:
        self.change_signature()
        lower = {
            TileLoadOp: self._load,
            TileStoreOp: self._store,
            TileAtomicOp: self._atomic,
            TileAddressOp: self._take_address,
            TileFetchAddOp: self._fetch_add,
            TileLoadDeviceOp: self._load_device,
            TileStoreDeviceOp: self._store_device,
            TileCopyOp: self._copy,
            TileCopyGroupOp: _close_group,
            TileCopyWaitOp: _wait_groups,
        }
        for op in self.ops:
            if isinstance(op, _UNBOUNDED) and not isinstance(_buffer_of(op).owner, ir.Block):
                self.fail(op, "a bounded buffer is reached by an access that checks no bounds")
            if not isinstance(op, TileBoundOp):
                with ir.InsertionPoint(op), op.operation.location:
                    lower[type(op)](op)
        # A bound is erased last: its uses are the ops above.
        for op in reversed(self.ops):
            op.operation.erase()

    def _take_address(self, op: ir.OpView) -> None:
        buffer, index = op.operation.operands
        op.operation.results[0].replace_all_uses_with(self._address(buffer, V(index)).value)

    def _fetch_add(self, op: ir.OpView) -> None:
        value, buffer, index = op.operation.operands
        address = self._address(buffer, V(index).to(i64()))
        made = llvm.AtomicRMWOp(llvm.AtomicBinOp.add, address.value, value, _RELAXED, syncscope=_SCOPE)
        op.operation.results[0].replace_all_uses_with(made.result)

    def _load_device(self, op: ir.OpView) -> None:
        buffer, index = op.operation.operands
        result, address = op.operation.results[0], self._address(buffer, V(index).to(i64()))
        size = bytes_of(result.type)
        made = llvm.LoadOp(result.type, address.value, alignment=size, ordering=_RELAXED, syncscope=_SCOPE)
        result.replace_all_uses_with(made.result)

    def _store_device(self, op: ir.OpView) -> None:
        value, buffer, index = op.operation.operands
        address, size = self._address(buffer, V(index).to(i64())), bytes_of(value.type)
        llvm.StoreOp(value, address.value, alignment=size, ordering=_RELAXED, syncscope=_SCOPE)

    def _copy(self, op: ir.OpView) -> None:
        """An asynchronous copy of 16 bytes a lane; beyond a bound zeros are written."""
        buffer, index, memory, place = op.operation.operands
        wide, element = V(index).to(i64()), ir.MemRefType(memory.type).element_type
        inside = self._inside(buffer, wide)
        address = self._address(buffer, wide if inside is None else inside.select(wide, 0))
        size = const(ALIGNMENT, i32())
        size = size if inside is None else inside.select(size, 0)
        base = V(memref.extract_aligned_pointer_as_index(memory)).to(i32())
        lane = V(gpu.thread_id(gpu.Dimension.x)).to(i32()) % self.wave
        at = base + V(place) * (bits(element) // 8) + lane * ALIGNMENT
        target = llvm.inttoptr(ir.Type.parse("!llvm.ptr<3>"), at.value)
        ir.Operation.create(
            "nvvm.cp.async.shared.global",
            operands=[target, address.value, size.value],
            attributes={
                "modifier": ir.Attribute.parse("#nvvm<load_cache_modifier cg>"),
                "size": ir.IntegerAttr.get(i32(), ALIGNMENT),
            },
        )

    def _address(self, buffer: ir.Value, index: V) -> V:
        argument = argument_of(buffer)
        return gep(V(argument), index, self.elements[argument])

    def _inside(self, buffer: ir.Value, index: V) -> V | None:
        """i1: whether the index lies within the bounds of a buffer; None where it has none."""
        inside = None
        while not isinstance(buffer.owner, ir.Block):
            bound = buffer.owner.operation.opview
            assert isinstance(bound, TileBoundOp)
            here = index.ult(V(bound.operation.operands[1]).to(i64()))
            inside = here if inside is None else inside & here
            buffer = bound.operation.operands[0]
        return inside

    def _load(self, op: TileLoadOp) -> None:
        buffer, index = op.operation.operands[0], V(op.operation.operands[1]).to(i64())
        result = op.operation.results[0]
        inside = self._inside(buffer, index)
        address = self._address(buffer, index if inside is None else inside.select(index, 0))
        value = V(llvm.LoadOp(result.type, address.value, alignment=_alignment(result.type)).result)
        if inside is not None:
            value = inside.select(value, const(0, result.type))
        result.replace_all_uses_with(value.value)

    def _store(self, op: TileStoreOp) -> None:
        value, buffer, index = op.operation.operands
        inside = self._inside(buffer, V(index).to(i64()))

        def write() -> None:
            address = self._address(buffer, V(index).to(i64()))
            llvm.StoreOp(value, address.value, alignment=_alignment(value.type))

        if inside is None:
            write()
        else:
            with if_(inside):
                write()

    def _atomic(self, op: TileAtomicOp) -> None:
        value, buffer, index = op.operation.operands
        address = self._address(buffer, V(index).to(i64()))
        llvm.AtomicRMWOp(_ATOMICRMW[op.kind], address.value, value, _RELAXED, syncscope=_SCOPE)


def _buffer_of(op: ir.OpView) -> ir.Value:
    """The buffer that an op of _UNBOUNDED reaches."""
    reads = isinstance(op, (TileLoadDeviceOp, TileAddressOp))
    return op.operation.operands[0 if reads else 1]


def _close_group(op: ir.OpView) -> None:
    ir.Operation.create("nvvm.cp.async.commit.group")


def _wait_groups(op: TileCopyWaitOp) -> None:
    ir.Operation.create("nvvm.cp.async.wait.group", attributes={"n": ir.IntegerAttr.get(i32(), op.newest)})


def _alignment(type_: ir.Type) -> int:
    return min(bytes_of(type_), ALIGNMENT)


@dataclasses.dataclass(frozen=True)
class LowerMemoryToGlobal(Pass):
    """See the module."""

    target: str = "sm_90"
    name: ClassVar[str] = "lower-memory-to-global"
    needs: ClassVar[str] = "gpu"
    gives: ClassVar[str] = "nvvm"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)
        for function in kernel_functions(module):
            _Kernel(self, function, target.wave).run()
