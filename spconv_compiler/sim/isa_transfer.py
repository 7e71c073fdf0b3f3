"""More memory opcodes: signed and half-register (d16) forms, all atomics, transfers straight to LDS, flat and scratch
addresses, transposed LDS reads. Meanings from the CDNA3 and CDNA4 ISA documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim import isa_memory
from spconv_compiler.sim.floats import DOUBLE, SINGLE
from spconv_compiler.sim.rows import Access, Row, row

_SMALL = {
    "sbyte": Access("load", 1, signed=True),
    "sshort": Access("load", 2, signed=True),
    "ubyte_d16": Access("load", 1, half="lo"),
    "ubyte_d16_hi": Access("load", 1, half="hi"),
    "sbyte_d16": Access("load", 1, signed=True, half="lo"),
    "sbyte_d16_hi": Access("load", 1, signed=True, half="hi"),
    "short_d16": Access("load", 2, half="lo"),
    "short_d16_hi": Access("load", 2, half="hi"),
}
_STORES = {"byte_d16_hi": Access("store", 1, half="hi"), "short_d16_hi": Access("store", 2, half="hi")}


def increment(old: al.Array, limit: al.Array) -> al.Array:
    """One more, 0 after the limit."""
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def decrement(old: al.Array, limit: al.Array) -> al.Array:
    """One less, the limit after 0 or above the limit."""
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def exchange(old: al.Array, new: al.Array) -> al.Array:
    """The new value."""
    return new


def _packed(convert: Callable[..., Any], bits: Callable[..., Any]) -> Callable[..., Any]:
    """Sums of two 16-bit floats in a word, each rounded once."""

    def add(old: al.Array, new: al.Array) -> al.Array:
        low, high = (convert(old >> s & np.uint32(0xFFFF)) + convert(new >> s & np.uint32(0xFFFF)) for s in (0, 16))
        return bits(low) | bits(high) << np.uint32(16)

    return add


add_f16 = _packed(al.from_f16, al.f16_bits)
add_bf16 = _packed(al.from_bf16, al.bf16_bits)

_INTEGERS: dict[str, tuple[Callable[..., Any], str]] = {
    "swap": (exchange, "u"),
    "add": (np.add, "u"),
    "sub": (np.subtract, "u"),
    "smin": (np.minimum, "i"),
    "umin": (np.minimum, "u"),
    "smax": (np.maximum, "i"),
    "umax": (np.maximum, "u"),
    "and": (np.bitwise_and, "u"),
    "or": (np.bitwise_or, "u"),
    "xor": (np.bitwise_xor, "u"),
    "inc": (increment, "u"),
    "dec": (decrement, "u"),
}


def _atomics() -> Iterator[tuple[str, Access]]:
    for name, (update, kind) in _INTEGERS.items():
        yield name, Access("atomic", 4, update=update, data=f"{kind}32")
        yield f"{name}_x2", Access("atomic", 8, update=update, data=f"{kind}64")
    yield "cmpswap", Access("atomic", 4, pair=True)
    yield "cmpswap_x2", Access("atomic", 8, data="u64", pair=True)
    yield "add_f32", Access("atomic", 4, update=np.add, data="f32")
    yield "pk_add_f16", Access("atomic", 4, update=add_f16)
    yield "pk_add_bf16", Access("atomic", 4, update=add_bf16)
    yield "add_f64", Access("atomic", 8, update=np.add, data="f64")
    yield "min_f64", Access("atomic", 8, update=DOUBLE.minimum, data="f64")
    yield "max_f64", Access("atomic", 8, update=DOUBLE.maximum, data="f64")


def _space(space: str, format_: str) -> list[Row]:
    """Every opcode of an address space that isa_memory.py has not got."""
    known = {each.name for each in isa_memory.ROWS}
    loads: dict[str, Access] = {f"load_{name}": access for name, access in _SMALL.items()}
    loads.update({f"store_{name}": access for name, access in _STORES.items()})
    if space in ("flat", "scratch"):
        plain = {name.removeprefix("global_"): name for name in known if name.startswith("global_")}
        rows = {each.name: each for each in isa_memory.ROWS}
        loads.update({short: rows[name].access for short, name in plain.items() if "atomic" not in short})  # type: ignore[misc]
    if space != "scratch":
        loads.update({f"atomic_{name}": access for name, access in _atomics()})
    return [
        row(f"{space}_{name}", space, format_, access=access)
        for name, access in loads.items()
        if f"{space}_{name}" not in known
    ]


def _to_local() -> list[Row]:
    sizes = {"ubyte": (1, False), "sbyte": (1, True), "ushort": (2, False), "sshort": (2, True)}
    rows = [
        row(f"global_load_lds_{name}", "global", "FLAT", access=Access("load", size, signed=signed, lds=True))
        for name, (size, signed) in sizes.items()
    ]
    for suffix, size in (("dword", 4), ("dwordx3", 12), ("dwordx4", 16)):
        rows.append(row(f"global_load_lds_{suffix}", "global", "FLAT", access=Access("load", size, lds=True)))
    return rows


_LOCAL_INTEGERS: dict[str, tuple[Callable[..., Any], str]] = {
    "add_u": (np.add, "u"),
    "sub_u": (np.subtract, "u"),
    "rsub_u": (lambda old, new: new - old, "u"),
    "inc_u": (increment, "u"),
    "dec_u": (decrement, "u"),
    "min_i": (np.minimum, "i"),
    "max_i": (np.maximum, "i"),
    "min_u": (np.minimum, "u"),
    "max_u": (np.maximum, "u"),
    "and_b": (np.bitwise_and, "u"),
    "or_b": (np.bitwise_or, "u"),
    "xor_b": (np.bitwise_xor, "u"),
}


def _local_atomics() -> Iterator[tuple[str, Access, bool]]:
    """(name without ds_ and _rtn, access, whether there is a form without result)."""
    for name, (update, kind) in _LOCAL_INTEGERS.items():
        for bits in (32, 64):
            access = Access("atomic", bits // 8, update=update, data=f"{kind}{bits}")
            yield f"{name}{bits}", access, True
    for bits in (32, 64):
        kind = f"u{bits}"
        yield f"wrxchg_b{bits}", Access("atomic", bits // 8, update=exchange, data=kind), False
        yield f"cmpst_b{bits}", Access("atomic", bits // 8, data=kind, pair=True), True
    yield "add_f32", Access("atomic", 4, update=np.add, data="f32"), True
    yield "min_f32", Access("atomic", 4, update=SINGLE.minimum, data="f32"), True
    yield "max_f32", Access("atomic", 4, update=SINGLE.maximum, data="f32"), True
    yield "add_f64", Access("atomic", 8, update=np.add, data="f64"), True
    yield "min_f64", Access("atomic", 8, update=DOUBLE.minimum, data="f64"), True
    yield "max_f64", Access("atomic", 8, update=DOUBLE.maximum, data="f64"), True
    yield "pk_add_f16", Access("atomic", 4, update=add_f16), True
    yield "pk_add_bf16", Access("atomic", 4, update=add_bf16), True


def _local() -> list[Row]:
    rows = [
        row("ds_read_i8", "lds", "DS", access=Access("load", 1, signed=True)),
        row("ds_read_i16", "lds", "DS", access=Access("load", 2, signed=True)),
        row("ds_write_b8_d16_hi", "lds", "DS", access=_STORES["byte_d16_hi"]),
        row("ds_write_b16_d16_hi", "lds", "DS", access=_STORES["short_d16_hi"]),
        row("ds_permute_b32", "permute", "DS", access=Access("load", 4)),
        row("ds_swizzle_b32", "permute", "DS", access=Access("load", 4)),
        row("ds_nop", "nop", "DS"),
    ]
    for half in ("lo", "hi"):
        suffix = "_d16" if half == "lo" else "_d16_hi"
        for name, size, signed in (("u8", 1, False), ("i8", 1, True), ("u16", 2, False)):
            access = Access("load", size, signed=signed, half=half)
            rows.append(row(f"ds_read_{name}{suffix}", "lds", "DS", access=access))
    for bits, tile in ((64, 4), (64, 8), (64, 16), (96, 6)):
        rows.append(row(f"ds_read_b{bits}_tr_b{tile}", "lds", "DS", access=Access("load", bits // 8, tile=tile)))
    for name, access, plain in _local_atomics():
        if plain:
            rows.append(row(f"ds_{name}", "lds", "DS", access=access))
        operation, _, kind = name.rpartition("_")
        returning = Access(**{**access.__dict__, "returns": True})
        rows.append(row(f"ds_{operation}_rtn_{kind}", "lds", "DS", access=returning))
    return rows


ROWS = [
    *_space("buffer", "MUBUF"),
    *_space("global", "FLAT"),
    *_space("flat", "FLAT"),
    *_space("scratch", "FLAT"),
    *_to_local(),
    *_local(),
]
