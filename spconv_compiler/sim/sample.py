"""Assembly text of an opcode with random operands: what opcodes.py is generated from, and what tests decode."""

from __future__ import annotations

import random

from spconv_compiler.sim.decode_memory import swizzle_text
from spconv_compiler.sim.decode_vector import lane_text
from spconv_compiler.sim.modifiers import FLOAT_SOURCES
from spconv_compiler.sim.rows import DWORDS, Row

# Conversions whose result is a whole register in every form.
_WHOLE_RESULTS = ("v_cvt_f32_fp8", "v_cvt_f32_bf8")
_PARTS = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")
_INLINE = ("0", "1", "17", "64", "-1", "-16", "0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0")


def sample(row: Row, format_: str, rng: random.Random) -> str:
    """One instruction in the compiler's notation; what the hardware allows only in some forms is kept to."""
    suffix = "" if len(row.formats) == 1 else "_e64" if format_ == "VOP3" else "_e32"
    if row.access is not None and format_ != "SMEM":
        operands, modifiers = _memory(row, rng)
    elif row.kind == "cache" and format_ == "MUBUF":
        operands, modifiers = [], ["sc1"]
    else:
        writer = _Operands(row, format_, rng)
        operands = writer.text()
        modifiers = writer.modifiers
    return " ".join(filter(None, [row.name + suffix, ", ".join(operands), *modifiers]))


def extensible(row: Row) -> bool:
    """Whether the row has forms with SDWA and DPP."""
    types = [kind for kind in (*row.results, *row.sources) if kind != "mask"]
    fits = all(kind in DWORDS and DWORDS[kind] == 1 and kind != "acc" for kind in types)
    short = bool({"VOP1", "VOP2", "VOPC"} & set(row.formats))
    return row.kind == "valu" and short and len(row.formats) == 2 and fits


def sample_sdwa(row: Row, rng: random.Random) -> str:
    """The row with parts of registers; fp8 conversions show no part of the result."""
    sources = [kind for kind in row.sources[1 if row.tied else 0 :] if kind != "mask"]
    results = ["vcc" if kind == "mask" else vector(rng, 1) for kind in row.results]
    if row.results == ("mask",):
        results = [scalar(rng, 2)]
    plain = row.name.startswith(("v_cndmask", "v_cvt_f32_bf16", *_WHOLE_RESULTS))
    signed = [kind not in FLOAT_SOURCES and not plain and rng.random() < 0.3 for kind in sources]
    texts = [_signs(vector(rng, 1), kind, rng) for kind in sources]
    texts = [f"sext({text})" if extend else text for text, extend in zip(texts, signed, strict=True)]
    if "mask" in row.sources:
        texts.append("vcc")
    modifiers = []
    if row.results != ("mask",):
        modifiers += ["clamp"] * (row.results[0] in ("f16", "f32") and rng.random() < 0.2)
        if not row.name.startswith(_WHOLE_RESULTS):
            unused = rng.choice(("PAD", "SEXT", "PRESERVE"))
            modifiers += [f"dst_sel:{rng.choice(_PARTS)}", f"dst_unused:UNUSED_{unused}"]
    modifiers += [f"src{index}_sel:{rng.choice(_PARTS)}" for index in range(len(sources))]
    return " ".join([f"{row.name}_sdwa", ", ".join(results + texts), *modifiers])


def sample_dpp(row: Row, rng: random.Random) -> str:
    """The row with a first source from other lanes."""
    sources = [kind for kind in row.sources[1 if row.tied else 0 :] if kind != "mask"]
    texts = [_signs(vector(rng, 1), kind, rng) for kind in sources]
    if "mask" in row.sources:
        texts.append("vcc")
    control = None
    while control is None:
        control = lane_text(rng.randrange(0x160))
    masks = [f"row_mask:{hex(rng.randrange(16))}", f"bank_mask:{hex(rng.randrange(16))}"]
    masks += ["bound_ctrl:1"] * rng.randrange(2)
    return " ".join([f"{row.name}_dpp", ", ".join([vector(rng, 1), *texts]), control, *masks])


def _signs(text: str, kind: str, rng: random.Random) -> str:
    """A register, perhaps with neg and abs."""
    if kind not in FLOAT_SOURCES or text[0] not in "vs":
        return text
    text = f"|{text}|" if rng.random() < 0.25 else text
    return f"-{text}" if rng.random() < 0.25 else text


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
        self.modifiers: list[str] = []

    def text(self) -> list[str]:
        row, rng = self.row, self.rng
        if self.format in ("MAI", "SCALE"):
            return self._matrix()
        if self.format == "VOP3P" and row.packed:
            return self._packed()
        results = [self._result(kind) for kind in row.results if kind != "scc"]
        implied = self.format in ("VOP2", "VOPC") and "mask" in row.sources
        # A literal counts as the one scalar operand that an instruction may have.
        self.scalar_read = implied or "imm32" in row.sources and self.format == "VOP2"
        sources = [kind for kind in row.sources if kind != "scc"][1 if row.tied else 0 :]
        hidden = row.name.startswith("v_div_fmas")
        if hidden:
            self.scalar_read = True
            sources = sources[:-1]
        texts = [self._source(kind, index) for index, kind in enumerate(sources)]
        if self.format == "VOP3" and row.kind == "valu":
            kinds = ["f32" if row.name == "v_cndmask_b32" and kind == "u32" else kind for kind in sources]
            if len(row.results) == 1:
                texts = [_signs(text, kind, rng) for text, kind in zip(texts, kinds, strict=True)]
                self._choose_modifiers(sources)
        if sources and sources[-1] == "imm32" and self.format == "VOP3":
            self.modifiers.insert(0, f"bitop3:{texts.pop()}")
        if self.format == "SMEM" and row.access is not None:
            register, offset = scalar(rng, 1), hex(rng.randrange(1 << 20))
            form = rng.randrange(3)
            texts.append(offset if form == 0 else register)
            self.modifiers += [f"offset:{offset}"] * (form == 2)
        return results + texts

    def _choose_modifiers(self, sources: list[str]) -> None:
        row, rng = self.row, self.rng
        result = row.results[0]
        if row.op_sel and "imm32" not in sources and rng.random() < 0.5:
            halves = [kind in ("f16", "u16", "i16") for kind in sources] + [result in ("h16", "f16", "u16", "i16")]
            chosen = [int(half and rng.random() < 0.5) for half in halves]
            self.modifiers += [f"op_sel:[{','.join(map(str, chosen))}]"] * any(chosen)
        clamps = result in ("f16", "f32", "f64") or row.saturated is not None
        if clamps and rng.random() < 0.3:
            self.modifiers.append("clamp")

    def _packed(self) -> list[str]:
        row, rng = self.row, self.rng
        count, wide = len(row.sources), row.results[0] == "p32"
        texts = [vector(rng, 2 if wide else 1) for _ in row.sources]
        if rng.random() < 0.3:
            texts[rng.randrange(count)] = scalar(rng, 2 if wide else 1)
        mixed = row.packed.startswith("mix")

        def bits(name: str, usual: int) -> None:
            values = [rng.randrange(2) for _ in range(count)]
            if rng.random() < 0.4 and any(value != usual for value in values):
                self.modifiers.append(f"{name}:[{','.join(map(str, values))}]")

        bits("op_sel", 0)
        bits("op_sel_hi", 0 if mixed else 1)
        floats = row.results[0] != "pki" and row.packed != "move"
        if mixed:
            texts = [_signs(text, "f32", rng) for text in texts]
        elif floats:
            bits("neg_lo", 0)
            bits("neg_hi", 0)
        if (floats or row.saturated is not None) and rng.random() < 0.2:
            self.modifiers.append("clamp")
        return [vector(rng, 2 if wide else 1), *texts]

    def _result(self, kind: str) -> str:
        if kind == "scalar":
            return scalar(self.rng, 1)
        if kind == "acc":
            return vector(self.rng, 1, "a")
        if kind == "mask":
            return "vcc" if self.format in ("VOP2", "VOPC") else scalar(self.rng, 2)
        if self.format == "SMEM" or not self.vector_op:
            return scalar(self.rng, DWORDS[kind])
        return vector(self.rng, DWORDS[kind])

    def _source(self, kind: str, index: int) -> str:
        rng = self.rng
        if kind == "k16":
            return str(rng.randrange(0, 8)) if self.row.kind in ("nop", "trap") else hex(rng.randrange(0, 0x8000))
        if kind == "target":
            return str(rng.randrange(-0x8000, 0x8000))
        if kind == "acc":
            return vector(rng, 1, "a")
        if kind == "imm32":
            return hex(rng.randrange(0x10000, 0x80000000) if self.format != "VOP3" else rng.randrange(1, 256))
        if kind == "hwreg":
            return rng.choice(("hwreg(HW_REG_MODE, 4, 4)", "hwreg(HW_REG_XCC_ID)", "hwreg(HW_REG_MODE)"))
        if kind == "s32":
            return scalar(rng, 1)
        if kind == "wait":
            return f"vmcnt({rng.randrange(63)}) lgkmcnt({rng.randrange(15)})"
        if kind == "v32":
            return vector(rng, 1)
        if kind == "lane" and self.row.tied:
            return str(rng.randrange(0, 64))
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
        if self.format in ("VOP2", "VOPC") and index >= 1:
            return vector(rng, dwords)
        choice = rng.random()
        if choice < 0.25 and not self.scalar_read and "mask" not in self.row.sources:
            self.scalar_read = True
            return scalar(rng, dwords)
        if choice < 0.35:
            return rng.choice(_INLINE[: None if kind in ("f32", "f64") else 6])
        if (
            choice < 0.45
            and self.format in ("VOP1", "VOP2", "VOPC")
            and dwords == 1
            and kind not in ("f16", "u16", "i16")
            and not self.scalar_read
            and "imm32" not in self.row.sources
        ):
            self.scalar_read = True
            return hex(rng.randrange(0x10000, 0x80000000))
        return vector(rng, dwords)

    def _matrix(self) -> list[str]:
        rng, row = self.rng, self.row
        total, left, right, _ = (DWORDS[kind] for kind in (*row.results, *row.sources[:3]))
        file = rng.choice("va")
        # C is D or apart from it: the hardware allows no partial overlap.
        result, apart = (
            f"{file}[{first}:{first + total - 1}]" for first in (rng.randrange(48) * 2, 128 + rng.randrange(48) * 2)
        )
        sources = [vector(rng, dwords, rng.choice("va")) for dwords in (left, right)]
        assert row.matrix is not None
        constants = ("0",) if row.matrix.result != "f32" else ("0", "1.0")
        texts = [result, *sources, rng.choice((*constants, apart, result))]
        if self.format == "SCALE":
            self.modifiers = ["op_sel_hi:[0,0,0]"]
            return [*texts, *(vector(rng, 1) for _ in range(2))]
        return texts


def _memory(row: Row, rng: random.Random) -> tuple[list[str], list[str]]:
    """(operands, modifiers) of a vector memory instruction."""
    if row.kind in ("lds", "permute"):
        return _local(row, rng)
    access = row.access
    assert access is not None
    atomic = access.kind == "atomic"
    returns = atomic and rng.random() < 0.5
    # The assembler takes accumulation registers in few of the atomics that return.
    file = "v" if atomic and row.kind != "buffer" else rng.choice("va")
    data = vector(rng, access.dwords * (2 if access.pair else 1), file)
    cache = [name for name in ("sc0", "nt", "sc1") if (returns if name == "sc0" and atomic else rng.random() < 0.2)]
    if row.kind == "buffer":
        return _buffer(row, data, cache, rng)
    low = 0 if row.kind == "flat" else -4096
    offset = rng.choice((0, rng.randrange(low, 4096)))
    if row.kind == "flat":
        address, base = vector(rng, 2), []
    elif row.kind == "scratch":
        address, base = rng.choice((vector(rng, 1), "off")), [rng.choice((scalar(rng, 1), "off"))]
    else:
        based = rng.random() < 0.5
        address, base = (vector(rng, 1), [scalar(rng, 2)]) if based else (vector(rng, 2), ["off"])
    if access.lds:
        operands = [address, *base]
    elif access.kind == "load":
        operands = [data, address, *base]
    else:
        result = [vector(rng, access.dwords, file)] if returns else []
        operands = [*result, address, data, *base]
    return operands, [f"offset:{offset}"] * (offset != 0) + cache


def _buffer(row: Row, data: str, cache: list[str], rng: random.Random) -> tuple[list[str], list[str]]:
    access = row.access
    assert access is not None
    offen, offset = rng.random() < 0.7, rng.choice((0, rng.randrange(4096)))
    modifiers = ["offen"] * offen + [f"offset:{offset}"] * (offset > 0) + cache
    soffset = rng.choice((scalar(rng, 1), "0", "17"))
    first = rng.randrange(0, 24) * 4
    operands = [vector(rng, 1) if offen else "off", f"s[{first}:{first + 3}]", soffset]
    if access.kind == "load" and not access.half and access.size != 8 and rng.random() < 0.3:
        return operands, [*modifiers, "lds"]
    return [data, *operands], modifiers


def _local(row: Row, rng: random.Random) -> tuple[list[str], list[str]]:
    access = row.access
    assert access is not None
    offset = rng.choice((0, rng.randrange(65536)))
    modifiers = [f"offset:{offset}"] * (offset > 0)
    address = vector(rng, 1)
    if row.name == "ds_swizzle_b32":
        keep, other = rng.randrange(1, 32), rng.randrange(32)
        pattern = rng.choice((0x8000 | rng.randrange(256), keep | (other & ~keep) << 5 | (other & keep) << 10))
        return [vector(rng, 1), address], [swizzle_text(pattern)]
    if row.kind == "permute":
        return [vector(rng, 1), address, vector(rng, 1)], modifiers
    file = rng.choice("va")
    if access.count == 2 or access.pair:
        if access.count == 2:
            offsets = [rng.randrange(256), rng.randrange(256)]
            modifiers = [f"offset{index}:{value}" for index, value in enumerate(offsets) if value]
        halves = [vector(rng, access.dwords // access.count, file) for _ in range(2)]
    else:
        halves = [vector(rng, access.dwords, file)]
    if access.kind == "load":
        return [vector(rng, access.dwords, file), address], modifiers
    result = [vector(rng, access.dwords, file)] if access.returns else []
    return [*result, address, *halves], modifiers
