"""Decodes vector instructions: VOP1, VOP2, VOPC with SDWA and DPP, VOP3, VOP3P and MFMA."""

from __future__ import annotations

import dataclasses

from spconv_compiler.sim.decoder import EXTENSIONS, LITERAL, Decoder, Parts
from spconv_compiler.sim.instruction import FLOATS, Operand
from spconv_compiler.sim.modifiers import DWORD, FLOAT_SOURCES, NONE, Modifiers, derive
from spconv_compiler.sim.modifiers import Parts as Selected
from spconv_compiler.sim.rows import DWORDS, LaneMove, Row

_VCC = 106
_PART_NAMES = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")
_UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")
# Rows whose 32-bit sources take the modifiers of a float.
_FLOAT_BITS = ("v_cndmask_b32",)
_CLAMPED_FLOATS = ("f16", "f32", "f64")
_NO_EXTENSION = ("lane", "swap", "cmpx", "nop")


def vector_32(self: Decoder, row: Row) -> Parts:
    """VOP1, VOP2, VOPC: lane masks are VCC, and are not encoded."""
    if row.kind == "nop":
        self.require_zero("vdst", "src0")
        return row, [], {}, []
    if row.kind == "swap":
        if self.field("src0") < 256:
            raise self.error(f"{row.name}: both operands must be vector registers")
        return row, [self.vector(self.field("vdst"), 1), self.vector(self.field("src0") - 256, 1)], {}, []
    code = self.field("src0")
    if code in EXTENSIONS:
        return _extended(self, row)
    operands = _results_32(self, row)
    types = list(row.sources[1:] if row.tied else row.sources)
    encoded = 0
    for type_ in types:
        if type_ == "mask":
            operands.append(Operand("s", _VCC, 2, "mask"))
        elif type_ == "imm32":
            # With a literal as source too, both are the one dword.
            value = operands[1].number if operands[1].kind == "literal" else self.take(4)
            operands.append(Operand("literal", value, 1, type_))
        elif encoded == 0:
            operands.append(_lane_source(self, code, type_))
            encoded += 1
        else:
            operands.append(self.vector(self.field("vsrc1"), DWORDS[type_], type_=type_))
    if "imm32" in types and code == LITERAL:
        raise self.error(f"{row.name} with two literals is not supported")
    return derive(row), operands, {}, []


def _results_32(self: Decoder, row: Row) -> list[Operand]:
    operands = []
    for type_ in row.results:
        if type_ == "mask":
            operands.append(Operand("s", _VCC, 2, "mask"))
        elif type_ == "scalar":
            operands.append(self.scalar(self.field("vdst"), 1, type_))
        elif type_ == "acc":
            operands.append(self.vector(self.field("vdst"), 1, accumulator=1, type_=type_))
        else:
            operands.append(self.vector(self.field("vdst"), DWORDS[type_], type_=type_))
    return operands


def _lane_source(self: Decoder, code: int, type_: str) -> Operand:
    """A source; those of lane reads are registers of one kind only."""
    if type_ == "v32" and code < 256 or type_ in ("lane", "s32") and code >= 256:
        raise self.error(f"source {code} cannot be the {'register' if type_ == 'v32' else 'lane'} of a lane read")
    return self.source(code, type_, accumulator=int(type_ == "acc"))


# SDWA and DPP: one more dword that holds the first source.


def _extended(self: Decoder, row: Row) -> Parts:
    name = EXTENSIONS[self.field("src0")]
    types = [type_ for type_ in (row.sources[1:] if row.tied else row.sources) if type_ != "mask"]
    if row.kind in _NO_EXTENSION or "imm32" in types or "acc" in types:
        raise self.error(f"{name} is not supported with {row.name}")
    extra = self.take(4)
    self.suffix = name
    return _sdwa(self, row, types, extra) if name == "SDWA" else _dpp(self, row, types, extra)


def _signs(self: Decoder, row: Row, types: list[str], extra: int, places: tuple[int, int]) -> tuple[int, int]:
    """(neg, abs) of two sources, whose bits stand from `places` on."""
    neg = absolute = 0
    for index, place in enumerate(places):
        if extra >> place & 3:
            if index >= len(types) or types[index] not in FLOAT_SOURCES and row.name not in _FLOAT_BITS:
                raise self.error(f"{row.name}: neg or abs of a source that is no float")
            neg |= (extra >> place & 1) << index
            absolute |= (extra >> place + 1 & 1) << index
    return neg, absolute


def _dpp(self: Decoder, row: Row, types: list[str], extra: int) -> Parts:
    control = extra >> 8 & 0x1FF
    text = lane_text(control)
    if text is None or extra >> 17 & 3 or "mask" in row.results or any(DWORDS[type_] > 1 for type_ in types):
        raise self.error(f"{row.name}: DPP control 0x{control:x} or operands that are not supported")
    neg, absolute = _signs(self, row, types, extra, (20, 22))
    move = LaneMove(control, extra >> 28, extra >> 24 & 15, bool(extra >> 19 & 1))
    operands = _results_32(self, row) + [self.vector(extra & 0xFF, 1, type_=types[0])]
    if len(types) > 1:
        operands.append(self.vector(self.field("vsrc1"), 1, type_=types[1]))
    operands = _marked(operands, len(row.results), neg, absolute, 0)
    if "mask" in row.sources:
        operands.append(Operand("s", _VCC, 2, "mask"))
    options = [text, f"row_mask:{hex(move.rows)}", f"bank_mask:{hex(move.banks)}"] + ["bound_ctrl:1"] * move.zero
    return derive(row, Modifiers(neg=neg, abs=absolute, lanes=move)), operands, {}, options


def lane_text(control: int) -> str | None:
    """The assembler's words for a DPP control, None for one that gfx950 has not got."""
    if control < 0x100:
        return f"quad_perm:[{','.join(str(control >> 2 * place & 3) for place in range(4))}]"
    shifts = {0x100: "row_shl", 0x110: "row_shr", 0x120: "row_ror", 0x150: "row_newbcast"}
    fixed = {
        0x130: "wave_shl:1", 0x134: "wave_rol:1", 0x138: "wave_shr:1", 0x13C: "wave_ror:1", 0x140: "row_mirror",
        0x141: "row_half_mirror", 0x142: "row_bcast:15", 0x143: "row_bcast:31",
    }  # fmt: skip
    name, count = shifts.get(control & 0x1F0), control & 15
    if name is not None and (count or name == "row_newbcast"):
        return f"{name}:{count}"
    return fixed.get(control)


def _sdwa(self: Decoder, row: Row, types: list[str], extra: int) -> Parts:
    compare = row.results == ("mask",)
    parts = tuple(extra >> place & 7 for place in (16, 24)[: len(types)])
    signed = extra >> 19 & 1 | (extra >> 27 & 1) << 1
    result, unused = (None, 0) if compare else (extra & 0, 0)
    operands = []
    options = []
    clamp = False
    if compare:
        number = extra >> 8 & 0x7F if extra >> 15 & 1 else _VCC
        if not extra >> 15 & 1 and extra >> 8 & 0x7F:
            raise self.error(f"{row.name}: a lane mask that is named and not used")
        operands.append(self.scalar(number, 2, "mask"))
    else:
        result, unused, clamp = extra >> 8 & 7, extra >> 11 & 3, bool(extra >> 13 & 1)
        if result > DWORD or unused > 2 or extra >> 14 & 3 or any(DWORDS[t] > 1 for t in row.results if t != "mask"):
            narrow = row.results == ("u64",) and (result, unused) == (DWORD, 0)
            if not narrow or extra >> 14 & 3:
                raise self.error(f"{row.name}: SDWA result of part {result}, unused {unused}, or omod")
        operands += _results_32(self, row)
        if clamp and row.results[0] not in _CLAMPED_FLOATS:
            raise self.error(f"{row.name}: clamp of an integer in SDWA")
        options += ["clamp"] * clamp
        if not row.name.startswith(("v_cvt_f32_fp8", "v_cvt_f32_bf8", "v_cvt_pk_f32_")):
            options += [f"dst_sel:{_PART_NAMES[result]}", f"dst_unused:{_UNUSED[unused]}"]
    if any(part > DWORD for part in parts) or any(DWORDS[type_] > 1 for type_ in types):
        raise self.error(f"{row.name}: SDWA sources that are not supported")
    if len(types) < 2 and (extra >> 24 or self.format.name != "VOP1") or extra >> 22 & 1 or extra >> 30 & 1:
        raise self.error(f"{row.name}: SDWA bits without a meaning")
    neg, absolute = _signs(self, row, types, extra, (20, 28))
    if signed and any(signed >> index & 1 and type_ in FLOAT_SOURCES for index, type_ in enumerate(types)):
        raise self.error(f"{row.name}: the sign extension of a float")
    for index, type_ in enumerate(types):
        number = extra & 0xFF if index == 0 else self.field("vsrc1")
        if extra >> (23 if index == 0 else 31) & 1:
            operands.append(self.scalar(number, 1, type_) if index == 0 or number < 128 else self.source(number, type_))
        else:
            operands.append(self.vector(number, 1, type_=type_))
        options.append(f"src{index}_sel:{_PART_NAMES[parts[index]]}")
    operands = _marked(operands, len(row.results), neg, absolute, signed)
    if "mask" in row.sources:
        operands.append(Operand("s", _VCC, 2, "mask"))
    chosen = Selected(parts, signed, result, unused)
    return derive(row, Modifiers(neg=neg, abs=absolute, clamp=clamp, parts=chosen)), operands, {}, options


def _marked(operands: list[Operand], first: int, neg: int, absolute: int, signed: int) -> list[Operand]:
    """The operands with what the text shows of neg, abs and sext; sources start at `first`."""
    if not neg | absolute | signed:
        return operands
    marked = list(operands)
    for index in range(len(operands) - first):
        flip, plain, wide = (bool(bits >> index & 1) for bits in (neg, absolute, signed))
        if flip or plain or wide:
            place = first + index
            marked[place] = dataclasses.replace(operands[place], neg=flip, absolute=plain, sext=wide)
    return marked


# VOP3.


def vector_64(self: Decoder, row: Row) -> Parts:
    """VOP3. With a lane mask as second result (VOP3B) bits 8 to 14 name it."""
    if row.kind == "nop":
        self.require_zero("vdst", "src0", "src1", "src2", "clamp", "omod", "neg", "abs", "op_sel")
        return row, [], {}, []
    if row.kind == "swap":
        self.require_zero("clamp", "omod", "neg", "abs", "op_sel", "src1", "src2")
        if self.field("src0") < 256:
            raise self.error(f"{row.name}: both operands must be vector registers")
        return row, [self.vector(self.field("vdst"), 1), self.vector(self.field("src0") - 256, 1)], {}, []
    if row.sources[-1:] == ("imm32",):
        return _truth_table(self, row)
    self.require_zero("omod")
    carry = len(row.results) == 2
    operands, types = [], list(row.sources[1:] if row.tied else row.sources)
    neg, absolute, op_sel, clamp = self.field("neg"), self.field("abs"), self.field("op_sel"), self.field("clamp")
    if carry:
        mask, absolute, op_sel = absolute | op_sel << 3, 0, 0
        operands.append(self.vector(self.field("vdst"), DWORDS[row.results[0]], type_=row.results[0]))
        operands.append(self.scalar(mask, 2, "mask"))
    elif row.results == ("mask",) or row.results == ("scalar",):
        operands.append(self.scalar(self.field("vdst"), 2 if row.results == ("mask",) else 1, row.results[0]))
    else:
        operands.append(self.vector(self.field("vdst"), DWORDS[row.results[0]], type_=row.results[0]))
    implied = row.name.startswith("v_div_fmas")
    encoded = types[:-1] if implied else types
    for index, type_ in enumerate(encoded):
        operands.append(_lane_source(self, self.field(f"src{index}"), type_))
    self.require_zero(*(f"src{index}" for index in range(len(encoded), 3)))
    _check_modifiers(self, row, encoded, neg, absolute, op_sel, clamp)
    sources = operands[len(row.results) :]
    if len({(operand.kind, operand.number) for operand in sources if operand.kind == "s"}) > 1 and row.kind != "lane":
        raise self.error(f"{row.name} reads two scalar registers")
    operands = _marked(operands, len(row.results), neg, absolute, 0)
    if implied:
        operands.append(Operand("s", _VCC, 2, "implied"))
    shown = op_sel & ((1 << len(encoded)) - 1) | (op_sel >> 3) << len(encoded)
    options = [self.bits("op_sel", shown, len(encoded) + 1)] if op_sel else []
    options += ["clamp"] * clamp
    used = (
        Modifiers(neg=neg, abs=absolute, clamp=bool(clamp), op_sel=op_sel) if neg | absolute | op_sel | clamp else NONE
    )
    return derive(row, used), operands, {}, options


def _check_modifiers(
    self: Decoder, row: Row, types: list[str], neg: int, absolute: int, op_sel: int, clamp: int
) -> None:
    """Modifiers that mean nothing with these operands are refused."""
    floats = sum(1 << i for i, t in enumerate(types) if t in FLOAT_SOURCES or row.name in _FLOAT_BITS and t == "u32")
    for name, value in (("neg", neg), ("abs", absolute)):
        if value & ~floats:
            raise self.error(f"VOP3 with {name} = {value} is not supported")
    result = row.results[0]
    if clamp and not (result in _CLAMPED_FLOATS and row.kind == "valu" or row.saturated is not None):
        raise self.error("VOP3 with clamp = 1 is not supported")
    halves = sum(1 << index for index, type_ in enumerate(types) if type_ in ("f16", "u16", "i16"))
    if result in ("h16", "f16", "u16", "i16"):
        halves |= 8
    if op_sel and (not row.op_sel or op_sel & ~halves):
        raise self.error(f"VOP3 with op_sel = {op_sel} is not supported")


def _truth_table(self: Decoder, row: Row) -> Parts:
    """v_bitop3: the table lies in the bits of omod, abs and neg."""
    self.require_zero("clamp", "op_sel")
    table = self.field("omod") << 6 | self.field("abs") << 3 | self.field("neg")
    operands = [self.vector(self.field("vdst"), 1, type_=row.results[0])]
    operands += [self.source(self.field(f"src{index}"), "u32") for index in range(3)]
    if len({operand.number for operand in operands[1:] if operand.kind == "s"}) > 1:
        raise self.error(f"{row.name} reads two scalar registers")
    operands.append(Operand("literal", table, 1, "implied"))
    return row, operands, {}, [f"bitop3:{hex(table)}"] if table else []


# VOP3P.


def vector_packed(self: Decoder, row: Row) -> Parts:
    """Packed arithmetic, mixed fma, dot products, moves of accumulation registers."""
    op_sel, neg, neg_hi, clamp = (self.field(name) for name in ("op_sel", "neg", "neg_hi", "clamp"))
    upper = self.field("op_sel_hi") | self.field("op_sel_hi2") << 2
    result = row.results[0]
    operands = [self.vector(self.field("vdst"), DWORDS[result], accumulator=int(result == "acc"), type_=result)]
    for index, type_ in enumerate(row.sources):
        mixed = ("f16" if upper >> index & 1 else "f32") if type_ == "mix" else type_
        operands.append(self.source(self.field(f"src{index}"), mixed, accumulator=int(type_ == "acc")))
    count = len(row.sources)
    self.require_zero(*(f"src{index}" for index in range(count, 3)))
    if len({operand.number for operand in operands[1:] if operand.kind == "s"}) > 1:
        raise self.error(f"{row.name} reads two scalar registers")
    all_of = (1 << count) - 1
    if not row.packed:
        # Bits of sources that an opcode has not got are set, by convention.
        if op_sel or neg or neg_hi or clamp or upper & all_of != all_of:
            raise self.error(f"{row.name} with modifiers is not supported")
        return row, operands, {}, []
    if (op_sel | neg | neg_hi) & ~all_of:
        raise self.error(f"{row.name}: a modifier of a source that it has not got")
    floats = result not in ("pki",)
    if not floats and (neg or neg_hi) or clamp and not (row.saturated if not floats else row.packed != "move"):
        raise self.error(f"{row.name}: neg or clamp is not supported")
    if row.packed == "move" and (neg or neg_hi):
        raise self.error(f"{row.name}: neg is not supported")
    for operand, chosen in zip(operands[1:], range(count), strict=True):
        if operand.kind == "inline" and result == "p32" and (op_sel | upper) >> chosen & 1 and operand.number in FLOATS:
            raise self.error(f"{row.name}: the upper half of a constant")
    mixed_row = row.packed.startswith("mix")
    options = [self.bits("op_sel", op_sel, count)] if op_sel else []
    if upper & all_of != (0 if mixed_row else all_of):
        options.append(self.bits("op_sel_hi", upper, count))
    if mixed_row:
        operands = _marked(operands, 1, neg, neg_hi, 0)
    else:
        options += [self.bits("neg_lo", neg, count)] if neg else []
        options += [self.bits("neg_hi", neg_hi, count)] if neg_hi else []
    options += ["clamp"] * clamp
    used = Modifiers(neg=neg, neg_hi=neg_hi, clamp=bool(clamp), op_sel=op_sel, op_sel_hi=upper & all_of | 7 & ~all_of)
    return derive(row, used), operands, {}, options


# MFMA.

_SMALL_FORMATS = {0: ("fp8", 8), 1: ("bf8", 8), 2: ("fp6", 6), 3: ("bf6", 6), 4: ("fp4", 4)}
_OF_DWORDS = {4: "u128", 6: "u192", 8: "u256"}


def matrix(self: Decoder, row: Row) -> Parts:
    """MFMA: A and B may each lie in accumulation registers, C and D together."""
    options = []
    small = row.name.endswith("f8f6f4")
    self.require_zero("abid", *(() if small else ("cbsz", "blgp")))
    if small:
        cbsz, blgp = self.field("cbsz"), self.field("blgp")
        row = small_formats(self, row, cbsz, blgp)
        options = ([f"cbsz:{cbsz}"] if cbsz else []) + ([f"blgp:{blgp}"] if blgp else [])
    accumulator = self.field("acc_cd")
    operands = [self.vector(self.field("vdst"), DWORDS[row.results[0]], accumulator=accumulator)]
    for index, type_ in enumerate(row.sources[:3]):
        code = self.field(f"src{index}")
        if index < 2:
            if code < 256:
                raise self.error(f"{row.name}: A and B must be vector registers")
            operands.append(self.source(code, type_, accumulator=self.field("acc") >> index & 1))
        elif code >= 256:
            operands.append(self.source(code, type_, accumulator=accumulator))
        elif 128 <= code <= 208 or code in FLOATS:
            operands.append(Operand("inline", code, DWORDS[type_], type_))
        else:
            raise self.error(f"{row.name}: C must be vector registers or an inline constant")
    return row, operands, {}, options


def small_formats(self: Decoder, row: Row, cbsz: int, blgp: int) -> Row:
    """The row of an f8f6f4 MFMA for the formats of A and B."""
    if cbsz not in _SMALL_FORMATS or blgp not in _SMALL_FORMATS:
        raise self.error(f"{row.name}: formats {cbsz} and {blgp}; known: 0 to 4")
    assert row.matrix is not None
    (a, a_dwords), (b, b_dwords) = _SMALL_FORMATS[cbsz], _SMALL_FORMATS[blgp]
    passes = row.matrix.passes if 8 in (a_dwords, b_dwords) else row.matrix.passes // 2
    shape = dataclasses.replace(row.matrix, element=a, other=b, passes=passes)
    sources = (_OF_DWORDS[a_dwords], _OF_DWORDS[b_dwords], *row.sources[2:])
    return dataclasses.replace(row, sources=sources, matrix=shape, variant=f"f{cbsz}{blgp}")


def scaled_matrix(self: Decoder, row: Row) -> Parts:
    """v_mfma_scale: the instruction that loads the scales, followed by the MFMA, whose abid is 1."""
    op_sel, upper = self.field("op_sel"), self.field("op_sel_hi")
    self.require_zero("clamp", "neg", "neg_hi", "src2", "vdst", "op_sel_hi2")
    scales = []
    for index in range(2):
        code = self.field(f"src{index}")
        scales.append(self.source(code, "u32"))
    self.word = self.take(8)
    self.format = next(format_ for format_ in self.formats if format_.name == "MAI")
    if self.word & self.format.mask != self.format.match or self.field("abid") != 1:
        raise self.error(f"{row.name} without its MFMA")
    cbsz, blgp = self.field("cbsz"), self.field("blgp")
    mfma, operands, _, _ = matrix(_without_abid(self), row)
    options = [self.bits("op_sel", op_sel, 3)] if op_sel else []
    options += [self.bits("op_sel_hi", upper, 3)]
    options += ([f"cbsz:{cbsz}"] if cbsz else []) + ([f"blgp:{blgp}"] if blgp else [])
    chosen = tuple((op_sel >> index & 1) | (upper >> index & 1) << 1 for index in range(2))
    assert mfma.matrix is not None
    shape = dataclasses.replace(mfma.matrix, scaled=True)
    scaled = dataclasses.replace(mfma, matrix=shape, variant=f"{mfma.variant}s{chosen[0]}{chosen[1]}")
    return scaled, [*operands, *scales], {"scale_a": chosen[0], "scale_b": chosen[1]}, options


def _without_abid(self: Decoder) -> Decoder:
    low, width = self.format.fields["abid"]
    self.word &= ~(((1 << width) - 1) << low)
    return self
