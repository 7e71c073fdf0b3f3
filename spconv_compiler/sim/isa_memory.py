"""Vector memory opcodes: buffer, global and LDS. Meanings from the CDNA3 and CDNA4 ISA documents."""

from __future__ import annotations

import numpy as np

from spconv_compiler.sim.rows import Access, Row, row

# Memory rows have no signature: operands and their order depend on the address form (decode.py).
_SIZES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
_ATOMICS: dict[str, tuple[np.ufunc, str]] = {
    "add": (np.add, "u32"),
    "sub": (np.subtract, "u32"),
    "smin": (np.minimum, "i32"),
    "umin": (np.minimum, "u32"),
    "smax": (np.maximum, "i32"),
    "umax": (np.maximum, "u32"),
    "and": (np.bitwise_and, "u32"),
    "or": (np.bitwise_or, "u32"),
    "xor": (np.bitwise_xor, "u32"),
    "add_f32": (np.add, "f32"),
}


def _vector_memory(space: str, format_: str) -> list[Row]:
    rows = [
        row(f"{space}_load_ubyte", space, format_, access=Access("load", 1)),
        row(f"{space}_load_ushort", space, format_, access=Access("load", 2)),
        row(f"{space}_store_byte", space, format_, access=Access("store", 1)),
        row(f"{space}_store_short", space, format_, access=Access("store", 2)),
    ]
    for kind in ("load", "store"):
        for suffix, size in _SIZES.items():
            rows.append(row(f"{space}_{kind}_{suffix}", space, format_, access=Access(kind, size)))
    for name, (update, data) in _ATOMICS.items():
        access = Access("atomic", 4, update=update, data=data)
        rows.append(row(f"{space}_atomic_{name}", space, format_, access=access))
    return rows


def _local_memory() -> list[Row]:
    rows = [
        row("ds_read_u8", "lds", "DS", access=Access("load", 1)),
        row("ds_read_u16", "lds", "DS", access=Access("load", 2)),
        row("ds_write_b8", "lds", "DS", access=Access("store", 1)),
        row("ds_write_b16", "lds", "DS", access=Access("store", 2)),
        row("ds_bpermute_b32", "permute", "DS", access=Access("load", 4)),
    ]
    for bits in (32, 64, 96, 128):
        rows.append(row(f"ds_read_b{bits}", "lds", "DS", access=Access("load", bits // 8)))
        rows.append(row(f"ds_write_b{bits}", "lds", "DS", access=Access("store", bits // 8)))
    for bits in (32, 64):
        for suffix, stride in (("", 1), ("st64", 64)):
            for kind, verb in (("load", "read"), ("store", "write")):
                access = Access(kind, bits // 8, count=2, stride=stride)
                rows.append(row(f"ds_{verb}2{suffix}_b{bits}", "lds", "DS", access=access))
    return rows


ROWS = [*_vector_memory("buffer", "MUBUF"), *_vector_memory("global", "FLAT"), *_local_memory()]
