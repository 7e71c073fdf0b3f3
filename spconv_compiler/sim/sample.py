"""Assembly text of an opcode with random operands: what opcodes.py is generated from, and what tests decode."""

from __future__ import annotations

import random

from spconv_compiler.sim.rows import DWORDS, Row

_INLINE = ("0", "1", "17", "64", "-1", "-16", "0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0")


def sample(row: Row, format_: str, rng: random.Random) -> str:
    """One instruction in the compiler's notation; what the hardware allows only in some forms is kept to."""
    suffix = "" if len(row.formats) == 1 else "_e64" if format_ == "VOP3" else "_e32"
    if row.access is not None and format_ != "SMEM":
        operands, modifiers = _memory(row, rng)
    else:
        operands, modifiers = _Operands(row, format_, rng).text(), []
    return " ".join([row.name + suffix, ", ".join(operands), *modifiers]).strip()


def vector(rng: random.Random, dwords: int, file: str = "v") -> str:
    """A vector register or an aligned tuple of them."""
    first = rng.randrange(0, 256 - dwords)
    first -= first % 2 if dwords > 1 else 0
    return f"{file}{first}" if dwords == 1 else f"{file}[{first}:{first + dwords - 1}]"


def scalar(rng: random.Random, dwords: int) -> str:
    """A scalar register or an aligned tuple of them."""
    if dwords <= 2 and rng.random() < 0.1:
        return "vcc" if dwords == 2 else "vcc_lo"
    step = min(dwords, 4)
    first = rng.randrange(0, (100 - dwords) // step) * step
    return f"s{first}" if dwords == 1 else f"s[{first}:{first + dwords - 1}]"


class _Operands:
    """Operands of scalar and vector arithmetic: one scalar source per vector instruction, literals where they fit."""

    def __init__(self, row: Row, format_: str, rng: random.Random) -> None:
        self.row, self.format, self.rng = row, format_, rng
        self.vector_op = format_[0] == "V" or format_ == "MAI"
        self.scalar_read = False
        self.literal_used = False

    def text(self) -> list[str]:
        row, rng = self.row, self.rng
        if self.format == "MAI":
            return self._matrix()
        results = [self._result(kind) for kind in row.results if kind != "scc"]
        implied = self.format in ("VOP2", "VOPC") and "mask" in row.sources
        self.scalar_read = implied
        sources = [kind for kind in row.sources if kind != "scc"][1 if row.tied else 0 :]
        texts = [self._source(kind, index) for index, kind in enumerate(sources)]
        offset = [hex(rng.randrange(1 << 20))] if self.format == "SMEM" else []
        return results + texts + offset

    def _result(self, kind: str) -> str:
        if kind == "scalar":
            return scalar(self.rng, 1)
        if kind == "mask":
            return "vcc" if self.format in ("VOP2", "VOPC") else scalar(self.rng, 2)
        if self.format == "SMEM" or not self.vector_op:
            return scalar(self.rng, DWORDS[kind])
        return vector(self.rng, DWORDS[kind])

    def _source(self, kind: str, index: int) -> str:
        rng = self.rng
        if kind == "k16":
            return str(rng.randrange(0, 8)) if self.row.kind == "nop" else hex(rng.randrange(0, 0x8000))
        if kind == "target":
            return str(rng.randrange(-0x8000, 0x8000))
        if kind == "wait":
            return f"vmcnt({rng.randrange(63)}) lgkmcnt({rng.randrange(15)})"
        if kind == "v32":
            return vector(rng, 1)
        if kind == "lane":
            return str(rng.randrange(0, 64)) if rng.random() < 0.5 else scalar(rng, 1)
        if kind == "mask":
            if self.format in ("VOP2", "VOPC"):
                return "vcc"
            return "vcc" if self.scalar_read else scalar(rng, 2)
        return self._value(kind, index)

    def _value(self, kind: str, index: int) -> str:
        rng, dwords = self.rng, DWORDS[kind]
        if self.format in ("SMEM", "SOPK"):
            return scalar(rng, dwords)
        if not self.vector_op:
            choice = rng.random()
            if choice < 0.6:
                return scalar(rng, dwords)
            if choice < 0.8 and not self.literal_used and dwords == 1:
                self.literal_used = True
                return hex(rng.randrange(0x10000, 0x80000000))
            return rng.choice(_INLINE[:6])
        if self.format in ("VOP2", "VOPC") and index == 1:
            return vector(rng, dwords)
        choice = rng.random()
        if choice < 0.25 and not self.scalar_read and "mask" not in self.row.sources:
            self.scalar_read = True
            return scalar(rng, dwords)
        if choice < 0.35:
            return rng.choice(_INLINE[: 6 if dwords == 2 or kind != "f32" else None])
        if choice < 0.45 and self.format != "VOP3" and dwords == 1 and kind != "f16" and not self.scalar_read:
            self.scalar_read = True
            return hex(rng.randrange(0x10000, 0x80000000))
        return vector(rng, dwords)

    def _matrix(self) -> list[str]:
        rng, row = self.rng, self.row
        total, left, right, _ = (DWORDS[kind] for kind in (*row.results, *row.sources))
        file = rng.choice("va")
        # C is D or apart from it: the hardware allows no partial overlap.
        result, apart = (
            f"{file}[{first}:{first + total - 1}]" for first in (rng.randrange(48) * 2, 128 + rng.randrange(48) * 2)
        )
        sources = [vector(rng, dwords, rng.choice("va")) for dwords in (left, right)]
        return [result, *sources, rng.choice(("0", "1.0", apart, result))]


def _memory(row: Row, rng: random.Random) -> tuple[list[str], list[str]]:
    """(operands, modifiers) of a vector memory instruction."""
    access = row.access
    assert access is not None
    file = rng.choice("va") if row.kind != "permute" else "v"
    data = vector(rng, access.dwords, file)
    cache = ["nt"] if rng.random() < 0.2 else []
    if row.kind == "buffer":
        offen, offset = rng.random() < 0.7, rng.choice((0, rng.randrange(4096)))
        modifiers = ["offen"] * offen + [f"offset:{offset}"] * (offset > 0) + cache
        soffset = rng.choice((scalar(rng, 1), "0", "17"))
        first = rng.randrange(0, 24) * 4
        return [data, vector(rng, 1) if offen else "off", f"s[{first}:{first + 3}]", soffset], modifiers
    if row.kind == "global":
        based, offset = rng.random() < 0.5, rng.choice((0, rng.randrange(-4096, 4096)))
        address, base = (vector(rng, 1), scalar(rng, 2)) if based else (vector(rng, 2), "off")
        operands = [data, address, base] if access.kind == "load" else [address, data, base]
        return operands, [f"offset:{offset}"] * (offset != 0) + cache
    if row.kind == "permute":
        offset = rng.choice((0, rng.randrange(65536)))
        return [data, vector(rng, 1), vector(rng, 1)], [f"offset:{offset}"] * (offset > 0)
    address = vector(rng, 1)
    if access.count == 2:
        offsets = [rng.randrange(256), rng.randrange(256)]
        modifiers = [f"offset{index}:{offset}" for index, offset in enumerate(offsets) if offset]
        halves = [vector(rng, access.dwords // 2, file) for _ in range(2)]
        return ([data, address] if access.kind == "load" else [address, *halves]), modifiers
    offset = rng.choice((0, rng.randrange(65536)))
    return [data, address] if access.kind == "load" else [address, data], [f"offset:{offset}"] * (offset > 0)
