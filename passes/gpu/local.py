"""Words for memory that a workgroup shares, in runs of 16 bytes, and for numbers that a wave shares."""

from __future__ import annotations

from spconv_compiler.bindings import gpu, ir, vector
from spconv_compiler.dialect import copy
from spconv_compiler.passes.kernel_builder import V, bits, i32, vec

_WORKGROUP = "#gpu.address_space<workgroup>"
# Bytes that one instruction moves for a lane.
RUN_BYTES = 16


def shared_runs(elements: int, element: ir.Type) -> ir.Type:
    """The type of `elements` elements that a workgroup shares; gpu_kernel aligns them to whole runs."""
    return ir.MemRefType.get([elements], element, memory_space=ir.Attribute.parse(_WORKGROUP))


def run_of(element: ir.Type) -> int:
    """Elements of one run."""
    return RUN_BYTES * 8 // bits(element)


def put_run(value: V, memory: V, index: V) -> None:
    """memory[index …] = a vector of 16 bytes; index is a multiple of its length."""
    vector.store(value.value, memory.value, [_index(index)], alignment=RUN_BYTES)


def get_run(memory: V, index: V) -> V:
    """The 16 bytes from element `index` on, a multiple of their number, as a vector."""
    element = ir.MemRefType(memory.type).element_type
    type_ = vec(run_of(element), element)
    return V(vector.load(type_, memory.value, [_index(index)], alignment=RUN_BYTES))


def copy_run(buffer: V, index: V, memory: V, place: V) -> None:
    """Starts memory[place + lane of the wave · run …] = buffer[index …]; place is the same in the whole wave."""
    copy.tile_copy(buffer.value, index.value, memory.value, place.value)


def copy_group() -> None:
    """Closes a group of copies."""
    copy.tile_copy_group()


def copy_wait(newest: int) -> None:
    """Waits until all but the newest groups of this wave have arrived."""
    copy.tile_copy_wait(newest)


def of_wave(value: V) -> V:
    """A value that all lanes of a wave have in common, where the code generator cannot see that."""
    first = ir.Attribute.parse("#gpu<broadcast first_active_lane>")
    return V(gpu.subgroup_broadcast(value.value, first))


def _index(index: V) -> ir.Value:
    return index.to(ir.IndexType.get()).value if index.type == i32() else index.value
