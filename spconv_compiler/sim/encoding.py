"""Instruction encodings of gfx950: which bits say which format, and where its fields lie.

From the "Microcode Formats" chapter of the CDNA3 ISA document; gfx950 keeps them. A bit that belongs to no field
here must be zero: the decoder refuses what it does not know.
"""

from __future__ import annotations

import dataclasses
import functools


@dataclasses.dataclass(frozen=True)
class Format:
    """One encoding: `bits` long, with `match` where `mask` is set; fields by name as (lowest bit, width)."""

    name: str
    bits: int
    mask: int
    match: int
    fields: dict[str, tuple[int, int]]

    def read(self, word: int, field: str) -> int:
        """The value of a field, unsigned."""
        low, width = self.fields[field]
        return word >> low & ((1 << width) - 1)

    @functools.cached_property
    def _unknown(self) -> int:
        known = self.mask
        for low, width in self.fields.values():
            known |= ((1 << width) - 1) << low
        return (1 << self.bits) - 1 & ~known

    def unknown_bits(self, word: int) -> int:
        """Bits that are set and belong neither to the format's mark nor to a field."""
        return word & self._unknown


def _format(name: str, bits: int, top: int, prefix: str, **fields: tuple[int, int]) -> Format:
    """A format whose first dword has `prefix` (binary) from bit `top` down."""
    low = top - len(prefix) + 1
    return Format(name, bits, ((1 << len(prefix)) - 1) << low, int(prefix, 2) << low, fields)


_VOP3_SOURCES = {"src0": (32, 9), "src1": (41, 9), "src2": (50, 9), "omod": (59, 2), "neg": (61, 3)}

# Longer marks stand before shorter ones that they contain.
FORMATS = (
    _format("SOP1", 32, 31, "101111101", sdst=(16, 7), op=(8, 8), ssrc0=(0, 8)),
    _format("SOPC", 32, 31, "101111110", op=(16, 7), ssrc1=(8, 8), ssrc0=(0, 8)),
    _format("SOPP", 32, 31, "101111111", op=(16, 7), simm16=(0, 16)),
    _format("SOPK", 32, 31, "1011", op=(23, 5), sdst=(16, 7), simm16=(0, 16)),
    _format("SOP2", 32, 31, "10", op=(23, 7), sdst=(16, 7), ssrc1=(8, 8), ssrc0=(0, 8)),
    _format("VOP1", 32, 31, "0111111", vdst=(17, 8), op=(9, 8), src0=(0, 9)),
    _format("VOPC", 32, 31, "0111110", op=(17, 8), vsrc1=(9, 8), src0=(0, 9)),
    _format("VOP2", 32, 31, "0", op=(25, 6), vdst=(17, 8), vsrc1=(9, 8), src0=(0, 9)),
    _format(
        "SMEM",
        64,
        31,
        "110000",
        op=(18, 8),
        imm=(17, 1),
        glc=(16, 1),
        soffset_en=(14, 1),
        sdata=(6, 7),
        sbase=(0, 6),
        offset=(32, 21),
        soffset=(57, 7),
    ),
    _format(
        "MAI",
        64,
        31,
        "110100111",
        op=(16, 7),
        acc_cd=(15, 1),
        abid=(11, 4),
        cbsz=(8, 3),
        vdst=(0, 8),
        src0=(32, 9),
        src1=(41, 9),
        src2=(50, 9),
        acc=(59, 2),
        blgp=(61, 3),
    ),
    _format(
        "VOP3P",
        64,
        31,
        "110100111",
        op=(16, 7),
        clamp=(15, 1),
        op_sel_hi2=(14, 1),
        op_sel=(11, 3),
        neg_hi=(8, 3),
        vdst=(0, 8),
        src0=(32, 9),
        src1=(41, 9),
        src2=(50, 9),
        op_sel_hi=(59, 2),
        neg=(61, 3),
    ),
    _format(
        "VOP3", 64, 31, "110100", op=(16, 10), clamp=(15, 1), op_sel=(11, 4), abs=(8, 3), vdst=(0, 8), **_VOP3_SOURCES
    ),
    _format(
        "DS",
        64,
        31,
        "110110",
        op=(17, 8),
        gds=(16, 1),
        acc=(25, 1),
        offset1=(8, 8),
        offset0=(0, 8),
        addr=(32, 8),
        data0=(40, 8),
        data1=(48, 8),
        vdst=(56, 8),
    ),
    _format(
        "MUBUF",
        64,
        31,
        "111000",
        op=(18, 7),
        lds=(16, 1),
        sc1=(15, 1),
        sc0=(14, 1),
        idxen=(13, 1),
        offen=(12, 1),
        nt=(17, 1),
        offset=(0, 12),
        vaddr=(32, 8),
        vdata=(40, 8),
        srsrc=(48, 5),
        acc=(55, 1),
        soffset=(56, 8),
    ),
    _format(
        "FLAT",
        64,
        31,
        "110111",
        op=(18, 7),
        sc1=(25, 1),
        nt=(17, 1),
        sc0=(16, 1),
        seg=(14, 2),
        sve=(13, 1),
        offset=(0, 13),
        addr=(32, 8),
        data=(40, 8),
        saddr=(48, 7),
        acc=(55, 1),
        vdst=(56, 8),
    ),
)


# Marks lie in the highest nine bits.
_MARK_SHIFT = 23


@functools.cache
def _formats_of(mark: int) -> tuple[Format, ...]:
    fitting = [format_ for format_ in FORMATS if mark << _MARK_SHIFT & format_.mask == format_.match]
    return tuple(format_ for format_ in fitting if format_.mask == fitting[0].mask)


def find_formats(first: int) -> tuple[Format, ...]:
    """The formats that an instruction with this first dword may have: those with the longest mark that fits."""
    return _formats_of(first >> _MARK_SHIFT)
