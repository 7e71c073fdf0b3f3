"""Ops inside kernels of level `gpu` that copy from buffers to shared memory without passing through registers.

A wave starts copies, closes them in groups, and later waits until all but its newest groups have arrived; behind a
barrier that follows, the other waves can read them too.
"""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp
from spconv_compiler.dialect.types import element_type

RUN_BYTES = 16


@register_operation(SpconvDialect)
class TileCopyOp(SpconvOp):
    """memory[place + lane·n …] = buffer[index …], n elements of 16 bytes in all, in every lane that is active.

    Args:
        buffer, index: where each lane reads, as in tile_load; a multiple of n. A bounded buffer gives zeros beyond.
        memory: a memref in workgroup memory, of one axis and the buffer's element type.
        place: element where lane 0 of the wave writes, the same in all lanes and a multiple of n.
    """

    OPERATION_NAME = "spconv.tile_copy"
    PURE = False

    def verify(self) -> Iterable[str]:
        buffer, _, memory, _ = self.operation.operands
        type_ = ir.MemRefType(memory.type)
        if type_.element_type != element_type(buffer.type) or type_.rank != 1 or "workgroup" not in str(type_):
            yield f"copies {buffer.type} to {memory.type}; accepted: workgroup memory of one axis and the same element"


@register_operation(SpconvDialect)
class TileCopyGroupOp(SpconvOp):
    """Closes a group: the wave's copies since the last one."""

    OPERATION_NAME = "spconv.tile_copy_group"
    PURE = False


@register_operation(SpconvDialect)
class TileCopyWaitOp(SpconvOp):
    """Waits until all but the `newest` groups of this wave have arrived."""

    OPERATION_NAME = "spconv.tile_copy_wait"
    PURE = False

    @property
    def newest(self) -> int:
        return int(ir.IntegerAttr(self.attribute("newest")).value)

    def verify(self) -> Iterable[str]:
        if self.newest < 0:
            yield f"newest is {self.newest}; accepted: 0 or more groups"


def tile_copy(buffer: ir.Value, index: ir.Value, memory: ir.Value, place: ir.Value) -> None:
    """Builds a `spconv.tile_copy`."""
    TileCopyOp.create([], [buffer, index, memory, place])


def tile_copy_group() -> None:
    """Builds a `spconv.tile_copy_group`."""
    TileCopyGroupOp.create([], [])


def tile_copy_wait(newest: int) -> None:
    """Builds a `spconv.tile_copy_wait`."""
    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), newest)
    TileCopyWaitOp.create([], [], {"newest": attribute})
