"""Memory operations of CPU kernels beyond load and store of numbers."""

from __future__ import annotations

from spconv_compiler.bindings import ir, llvm
from spconv_compiler.passes.cpu.functions import pointer
from spconv_compiler.passes.kernel_builder import Operand, V, build, const, gep, i1, i32, i64, load, store, vec

CACHE_LINE = 64

_ADD = 1
_MONOTONIC = 2
# llvm.prefetch: read, keep in all cache levels, data cache.
_READ, _KEEP, _DATA = 0, 3, 1


def i8() -> ir.Type:
    return ir.IntegerType.get_signless(8)


def i16() -> ir.Type:
    return ir.IntegerType.get_signless(16)


def bytes_after(base: V, count: Operand) -> V:
    """The address `count` bytes behind `base`."""
    return gep(base, count, i8())


def load_pointer(base: V, index: Operand = 0) -> V:
    """Element `index` of an array of pointers."""
    return load(base, pointer(), index)


def store_slot(value: V, base: V, index: Operand) -> None:
    """Writes a pointer or an i64 into element `index` of an array of eight-byte slots."""
    store(value, base, index)


def stack_array(count: int, element: ir.Type, *, align: int = CACHE_LINE) -> V:
    """`count` elements on the stack of the running function; to be called in its entry block only."""
    return V(llvm.AllocaOp(pointer(), const(count, i64()).value, element, alignment=align).result)


def pointer_at(address: V) -> V:
    """An address, i64, as a pointer."""
    return V(llvm.IntToPtrOp(pointer(), address.value).result)


def null() -> V:
    """The null pointer."""
    return V(llvm.ZeroOp(pointer()).result)


def atomic_add(address: V, value: V) -> V:
    """Adds to the i64 at `address` and gives what it was before; orders nothing else."""
    kind, order = ir.IntegerAttr.get(i64(), _ADD), ir.IntegerAttr.get(i64(), _MONOTONIC)
    return V(llvm.AtomicRMWOp(kind, address.value, value.value, order).result)


def load_first(address: V, count: int, lanes: int) -> V:
    """The first `count` of `lanes` i16, and zeros in place of the others, which need not be readable."""
    whole = vec(lanes, i16())
    if count == lanes:
        return load(address, whole)
    chosen = ", ".join("true" if lane < count else "false" for lane in range(lanes))
    flags = ir.Attribute.parse(f"dense<[{chosen}]> : vector<{lanes}xi1>")
    mask = build("arith.constant", vec(lanes, i1()), value=flags)
    align = ir.IntegerAttr.get(i32(), 2)
    return build("llvm.intr.masked.load", whole, address.value, mask.value, const(0, whole).value, alignment=align)


def prefetch(address: V) -> None:
    """Asks for the cache line at `address`, which may be any address."""
    llvm.Prefetch(address.value, _READ, _KEEP, _DATA)


def rounded(count: int, multiple: int = CACHE_LINE) -> int:
    """`count` rounded up to a multiple."""
    return -(-count // multiple) * multiple
