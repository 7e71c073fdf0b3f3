"""Lowers buffer access in kernels: i32 indices to buffer instructions, i64 indices to global ones.

Before:
    gpu.func @k(%in: !spconv.buffer<bf16>, %n: i32) kernel {
      %v = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> vector<8xbf16>
After:
    gpu.func @k(%in: !llvm.ptr<1> {llvm.noalias, llvm.readonly, …}, %n: i32) kernel {
      %r = rocdl.make.buffer.rsrc %in, … : <1> to <8>
      %v = rocdl.raw.ptr.buffer.load %r, %vector_offset, %scalar_offset, 0 : vector<8xbf16>

An i32 index promises a byte offset below 2^32; the part of it that all lanes share goes to the scalar offset. A
scalar read at an index that all lanes share, from a buffer that the kernel only reads, becomes a plain load, which
the code generator turns into a scalar load. tile_bound becomes the resource's size. The buffers of a launch do not
overlap and start at multiples of 16 bytes.

Needs level gpu, leaves the tile ops for matrices to lower-mma-to-mfma. Fails on a bounded buffer that is reached by
an i64 index: global instructions check no bounds.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir, llvm, memref, rocdl
from spconv_compiler.dialect import (
    TileAddressOp,
    TileAtomicOp,
    TileBoundOp,
    TileCopyGroupOp,
    TileCopyOp,
    TileCopyWaitOp,
    TileLoadDeviceOp,
    TileLoadOp,
    TileStoreDeviceOp,
    TileStoreOp,
)
from spconv_compiler.passes.base import Pass, kernel_functions
from spconv_compiler.passes.gpu.address import Split
from spconv_compiler.passes.gpu.kernel_pointers import ALIGNMENT, KernelPointers, argument_of, bytes_of
from spconv_compiler.passes.gpu.lanes import times
from spconv_compiler.passes.gpu.scheduled import gpu_target
from spconv_compiler.passes.gpu.uniform import Uniform
from spconv_compiler.passes.kernel_builder import V, bits, const, gep, i32, i64

# Word 3 of a raw buffer resource on CDNA: data format 32, bounds checked on the byte offset.
_RESOURCE_FLAGS = 0x27000
_BUFFER_ATOMICS = {"fadd": "rocdl.raw.ptr.buffer.atomic.fadd", "umin": "rocdl.raw.ptr.buffer.atomic.umin"}
_ATOMICRMW = {
    "fadd": llvm.AtomicBinOp.fadd,
    "umin": llvm.AtomicBinOp.umin,
    "add": llvm.AtomicBinOp.add,
    "or": llvm.AtomicBinOp._or,
}
# Without these three the code generator emits a compare-and-swap loop for a float atomic.
_NATIVE_FLOAT_ATOMIC = ("no_fine_grained_memory", "no_remote_memory", "ignore_denormal_mode")
# Marks of copies make the code generator ask for arguments that no launch passes.
_NOT_HIDDEN = tuple(f"amdgpu-no-{name}" for name in ("implicitarg-ptr", "dispatch-ptr", "queue-ptr", "dispatch-id"))
# Else a workgroup of many waves gets half of its registers as accumulation registers, and moves between the halves.
_NO_ACCUMULATION_REGISTERS = ("amdgpu-agpr-alloc", "0,0")
_LOCAL_POINTER = "!llvm.ptr<3>"


class _Kernel(KernelPointers):
    """The lowering of one gpu.func."""

    def __init__(self, pass_: LowerMemoryToBuffer, function: ir.OpView, reach: int) -> None:
        super().__init__(function)
        # Addresses are for the instructions of other targets.
        self.ops = [op for op in self.ops if not isinstance(op, TileAddressOp)]
        self.fail, self.reach = pass_.fail, reach
        self.uniform = Uniform(self._is_shared)
        self.resources: dict[ir.Value, V] = {}

    def run(self) -> None:
        self.change_signature()
        for op in self.ops:
            with ir.InsertionPoint(op), op.operation.location:
                if isinstance(op, TileBoundOp):
                    self._bound(op)
                elif isinstance(op, TileLoadOp):
                    self._load(op)
                elif isinstance(op, TileStoreOp):
                    self._store(op)
                elif isinstance(op, TileAtomicOp):
                    self._atomic(op)
                elif isinstance(op, TileCopyOp):
                    self._copy(op)
                elif isinstance(op, TileCopyGroupOp):
                    rocdl.asyncmark()
                elif isinstance(op, TileCopyWaitOp):
                    rocdl.wait_asyncmark(op.newest)
                else:
                    self._between_workgroups(op)
        # A bound is erased last: its uses are the ops above.
        for op in reversed(self.ops):
            op.operation.erase()

    def _resource(self, pointer: V, size: V) -> V:
        flags, stride = const(_RESOURCE_FLAGS, i32()), const(0, ir.IntegerType.get_signless(16))
        type_ = ir.Type.parse("!llvm.ptr<8>")
        return V(rocdl.make_buffer_rsrc(type_, pointer.value, stride.value, size.value, flags.value))

    def _bound(self, op: TileBoundOp) -> None:
        buffer, elements = op.operation.operands
        argument = argument_of(buffer)
        size = times(V(elements), bytes_of(self.elements[argument]))
        self.resources[op.operation.results[0]] = self._resource(V(argument), size)

    def _resource_of(self, buffer: ir.Value) -> V:
        """The resource of a bounded buffer, or the one that reaches as far as offsets do, made at the top."""
        if buffer not in self.resources:
            with ir.InsertionPoint.at_block_begin(self.entry), self.function.operation.location:
                self.resources[buffer] = self._resource(V(buffer), const(self.reach, i64()))
        return self.resources[buffer]

    def _offsets(self, buffer: ir.Value, index: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Byte offsets (vector, scalar). Only the vector one is checked, so a bounded buffer has no other."""
        size = bytes_of(self.elements[argument_of(buffer)])
        if isinstance(buffer.owner, ir.Block):
            vector, scalar = Split.of(index, self.uniform).offsets(size)
        else:
            vector, scalar = times(V(index), size), const(0, i32())
        return vector.value, scalar.value

    def _pointer(self, op: ir.OpView, buffer: ir.Value, index: ir.Value) -> V:
        """The global address of an element."""
        if not isinstance(buffer.owner, ir.Block):
            self.fail(op, "a bounded buffer is reached by global addresses", "supported: an i32 index")
        return gep(V(buffer), V(index).to(i64()), self.elements[buffer])

    def _is_shared(self, op: ir.OpView) -> bool:
        """Whether an op reads a number, from memory that the kernel leaves alone."""
        if not isinstance(op, TileLoadOp) or isinstance(op.operation.results[0].type, ir.VectorType):
            return False
        buffer = op.operation.operands[0]
        return isinstance(buffer.owner, ir.Block) and buffer not in self.written

    def _load(self, op: TileLoadOp) -> None:
        buffer, index = op.operation.operands
        result = op.operation.results[0]
        wide = index.type == i64()
        shared = self._is_shared(op) and index in self.uniform
        if wide or shared:
            alignment = min(bytes_of(result.type), ALIGNMENT)
            value = llvm.LoadOp(result.type, self._pointer(op, buffer, index).value, alignment=alignment).result
        else:
            offsets = self._offsets(buffer, index)
            value = rocdl.raw_ptr_buffer_load(result.type, self._resource_of(buffer).value, *offsets, aux=_no_policy())
        if shared:
            self.uniform.add(value)
        result.replace_all_uses_with(value)

    def _store(self, op: TileStoreOp) -> None:
        value, buffer, index = op.operation.operands
        if index.type == i64():
            address = self._pointer(op, buffer, index)
            llvm.StoreOp(value, address.value, alignment=min(bytes_of(value.type), ALIGNMENT))
        else:
            offsets = self._offsets(buffer, index)
            rocdl.raw_ptr_buffer_store(value, self._resource_of(buffer).value, *offsets, aux=_no_policy())

    def _atomic(self, op: TileAtomicOp) -> None:
        value, buffer, index = op.operation.operands
        if index.type == i32() and op.kind in _BUFFER_ATOMICS:
            operands = [value, self._resource_of(buffer).value, *self._offsets(buffer, index)]
            attributes = {"aux": _no_policy()}
            ir.Operation.create(_BUFFER_ATOMICS[op.kind], [value.type], operands, attributes)
            return
        address = self._pointer(op, buffer, index)
        made = llvm.AtomicRMWOp(
            _ATOMICRMW[op.kind], address.value, value, llvm.AtomicOrdering.monotonic, syncscope="agent"
        )
        if op.kind == "fadd":
            for name in _NATIVE_FLOAT_ATOMIC:
                made.operation.attributes[f"rocdl.{name}"] = ir.UnitAttr.get()

    def _copy(self, op: TileCopyOp) -> None:
        """A load to local memory: lane l's 16 bytes go to the address of lane 0 plus 16·l."""
        buffer, index, memory, place = op.operation.operands
        size = const(ALIGNMENT, i32())
        base = V(memref.extract_aligned_pointer_as_index(memory)).to(i32())
        address = base + times(V(place), bits(ir.MemRefType(memory.type).element_type) // 8)
        pointer = llvm.inttoptr(ir.Type.parse(_LOCAL_POINTER), address.value)
        offsets = self._offsets(buffer, index)
        resource, none = self._resource_of(buffer).value, const(0, i32())
        rocdl.raw_ptr_buffer_load_async_lds(resource, pointer, size.value, *offsets, none.value, aux=_no_policy())
        facts: list[ir.Attribute] = [ir.StringAttr.get(name) for name in _NOT_HIDDEN]
        facts.append(ir.ArrayAttr.get([ir.StringAttr.get(text) for text in _NO_ACCUMULATION_REGISTERS]))
        self.function.operation.attributes["llvm.passthrough"] = ir.ArrayAttr.get(facts)

    def _between_workgroups(self, op: ir.OpView) -> None:
        """Accesses of device scope: relaxed atomics, which go past the caches of a compute unit."""
        *values, buffer, index = op.operation.operands
        pointer, order = self._pointer(op, buffer, index), llvm.AtomicOrdering.monotonic
        if isinstance(op, TileLoadDeviceOp):
            (result,) = op.operation.results
            size = bytes_of(result.type)
            loaded = llvm.LoadOp(result.type, pointer.value, alignment=size, ordering=order, syncscope="agent")
            result.replace_all_uses_with(loaded.result)
        elif isinstance(op, TileStoreDeviceOp):
            size = bytes_of(values[0].type)
            llvm.StoreOp(values[0], pointer.value, alignment=size, ordering=order, syncscope="agent")
        else:
            made = llvm.AtomicRMWOp(llvm.AtomicBinOp.add, pointer.value, values[0], order, syncscope="agent")
            op.operation.results[0].replace_all_uses_with(made.result)


def _no_policy() -> ir.Attribute:
    """The cache policy operand of a buffer instruction: none."""
    return ir.IntegerAttr.get(i32(), 0)


@dataclasses.dataclass(frozen=True)
class LowerMemoryToBuffer(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "lower-memory-to-buffer"
    needs: ClassVar[str] = "gpu"
    gives: ClassVar[str] = "rocdl"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)
        for function in kernel_functions(module):
            _Kernel(self, function, target.buffer_limit_bytes).run()
