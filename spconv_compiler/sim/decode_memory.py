"""Decodes memory instructions: SMEM, MUBUF, FLAT with its segments, DS."""

from __future__ import annotations

import dataclasses

from spconv_compiler.sim.decoder import Decoder, Parts
from spconv_compiler.sim.instruction import Operand
from spconv_compiler.sim.rows import DWORDS, Access, Row

_OFF = 0x7F
SEGMENTS = {0: "flat", 1: "scratch", 2: "global"}


def scalar_memory(self: Decoder, row: Row) -> Parts:
    """SMEM: an immediate, a scalar register, or both are added to the base."""
    self.require_zero("glc")
    offset, imm, register = self.field("offset"), self.field("imm"), self.field("soffset_en")
    if row.kind in ("clock", "cache"):
        self.require_zero("imm", "soffset_en", "sbase", "offset", "soffset", *(() if row.results else ("sdata",)))
        return row, [self.scalar(self.field("sdata"), 2, "u64")] if row.results else [], {}, []
    operands = [
        self.scalar(self.field("sdata"), DWORDS[row.results[0]], row.results[0]),
        self.scalar(self.field("sbase") * 2, DWORDS[row.sources[0]], row.sources[0]),
    ]
    signed = offset - (1 << 21 if offset >> 20 else 0)
    if imm:
        if not register:
            self.require_zero("soffset")
            return row, [*operands, Operand("offset", signed)], {}, []
        return row, [*operands, self.scalar(self.field("soffset"), 1, "u32")], {"offset": signed}, []
    self.require_zero("soffset_en", "soffset")
    if offset >> 8:
        raise self.error(f"{row.name}: an offset register with the number {offset}")
    return row, [*operands, self.scalar(offset, 1, "u32")], {}, []


def _cache_bits(self: Decoder) -> dict[str, int]:
    """sc0, nt, sc1: scopes of loads and stores; on atomics sc0 asks for the old value."""
    return {name: 1 for name in ("sc0", "nt", "sc1") if self.field(name)}


def buffer(self: Decoder, row: Row) -> Parts:
    """MUBUF."""
    cache = _cache_bits(self)
    if row.access is None:
        self.require_zero("lds", "idxen", "offen", "offset", "vaddr", "vdata", "srsrc", "acc", "soffset")
        return row, [], cache, []
    self.require_zero("idxen")
    offset, offen, lds = self.field("offset"), self.field("offen"), self.field("lds")
    if not offen and self.field("vaddr"):
        raise self.error(f"{row.name} names an address register that it does not use")
    modifiers = {**({"offen": 1} if offen else {}), **({"offset": offset} if offset else {}), **cache}
    operands = [
        self.vector(self.field("vaddr"), 1) if offen else Operand("off", 0),
        self.scalar(self.field("srsrc") * 4, 4),
        self.source(self.field("soffset"), "u32"),
    ]
    if lds:
        if row.access.kind != "load" or row.access.half or row.access.size == 8:
            raise self.error(f"MUBUF with lds = 1 is not supported for {row.name}")
        self.require_zero("vdata", "acc")
        to_local = dataclasses.replace(row, access=dataclasses.replace(row.access, lds=True), variant="lds")
        return to_local, operands, {**modifiers, "lds": 1}, []
    data = self.vector(self.field("vdata"), _data_dwords(row.access), accumulator=self.field("acc"))
    return row, [data, *operands], modifiers, []


def _data_dwords(access: Access) -> int:
    """Registers that hold the data of an atomic or store."""
    return access.dwords * (2 if access.pair else 1)


def flat(self: Decoder, row: Row) -> Parts:
    """FLAT: flat, scratch and global addresses."""
    access = row.access
    assert access is not None
    offset, cache = self.field("offset"), _cache_bits(self)
    if row.kind == "flat" and offset >> 12:
        raise self.error(f"{row.name}: an offset below zero")
    offset -= 1 << 13 if offset >> 12 else 0
    modifiers = {**({"offset": offset} if offset else {}), **cache}
    address = _address(self, row)
    accumulator = self.field("acc")
    if access.lds:
        self.require_zero("vdst", "data", "acc")
        return row, address, modifiers, []
    if access.kind == "load":
        self.require_zero("data")
        return (
            row,
            [self.vector(self.field("vdst"), access.dwords, accumulator=accumulator), *address],
            modifiers,
            [],
        )
    data = self.vector(self.field("data"), _data_dwords(access), accumulator=accumulator)
    operands = [address[0], data, *address[1:]]
    if access.kind == "atomic" and self.field("sc0"):
        operands.insert(0, self.vector(self.field("vdst"), access.dwords, accumulator=accumulator))
    else:
        self.require_zero("vdst")
    return row, operands, modifiers, []


def _address(self: Decoder, row: Row) -> list[Operand]:
    """The register operands of the address: of flat one, else two."""
    base = self.field("saddr")
    if row.kind == "flat":
        self.require_zero("sve", "saddr")
        return [self.vector(self.field("addr"), 2)]
    based = Operand("off", 0) if base == _OFF else self.scalar(base, 1 if row.kind == "scratch" else 2)
    if row.kind == "global":
        self.require_zero("sve")
        return [self.vector(self.field("addr"), 2 if base == _OFF else 1), based]
    if not self.field("sve"):
        self.require_zero("addr")
        return [Operand("off", 0), based]
    return [self.vector(self.field("addr"), 1), based]


def local(self: Decoder, row: Row) -> Parts:
    """DS."""
    access = row.access
    self.require_zero("gds")
    if access is None:
        self.require_zero("acc", "offset0", "offset1", "addr", "data0", "data1", "vdst")
        return row, [], {}, []
    accumulator, address = self.field("acc"), self.vector(self.field("addr"), 1)
    low, high = self.field("offset0"), self.field("offset1")
    offsets = {"offset0": low, "offset1": high} if access.count == 2 else {"offset": low | high << 8}
    modifiers = {name: value for name, value in offsets.items() if value}
    if row.kind == "permute":
        self.require_zero("acc", "data1")
        target = self.vector(self.field("vdst"), 1)
        if row.name == "ds_swizzle_b32":
            self.require_zero("data0")
            pattern = low | high << 8
            return row, [target, address], {"swizzle": pattern}, [swizzle_text(pattern)] if pattern else []
        return row, [target, address, self.vector(self.field("data0"), 1)], modifiers, []
    if access.kind == "load":
        self.require_zero("data0", "data1")
        return (
            row,
            [self.vector(self.field("vdst"), access.dwords, accumulator=accumulator), address],
            modifiers,
            [],
        )
    two = access.count == 2 or access.pair
    self.require_zero(*(() if two else ("data1",)), *(() if access.returns else ("vdst",)))
    fields = ("data0", "data1")[: 1 + two]
    data = [self.vector(self.field(field), access.dwords // access.count, accumulator=accumulator) for field in fields]
    result = [self.vector(self.field("vdst"), access.dwords, accumulator=accumulator)] if access.returns else []
    return row, [*result, address, *data], modifiers, []


def swizzle_text(pattern: int) -> str:
    """The assembler's words for the pattern of ds_swizzle_b32."""
    if pattern & 0x8000:
        return f"offset:swizzle(QUAD_PERM,{','.join(str(pattern >> 2 * place & 3) for place in range(4))})"
    keep, set_, flip = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
    if keep == 31 and not set_ and flip and not flip & flip - 1:
        return f"offset:swizzle(SWAP,{flip})"
    if keep == 31 and not set_ and flip and not flip & flip + 1:
        return f"offset:swizzle(REVERSE,{flip + 1})"
    group = 32 - keep
    if group > 1 and not group & group - 1 and set_ < group and not flip:
        return f"offset:swizzle(BROADCAST,{group},{set_})"
    letters = ""
    for bit in (16, 8, 4, 2, 1):
        kept, one, turned = bool(keep & bit), bool(set_ & bit), bool(flip & bit)
        letters += ("01"[one ^ turned]) if not kept or one else "pi"[turned]
    return f'offset:swizzle(BITMASK_PERM,"{letters}")'
