"""From the bytes of a kernel to instructions. What is not known for certain is refused, with address and bytes."""

from __future__ import annotations

from collections.abc import Callable

from spconv_compiler.sim.encoding import Format, find_format
from spconv_compiler.sim.errors import DecodeError
from spconv_compiler.sim.instruction import FLOATS, Instruction, Operand
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.opcodes import OPCODES
from spconv_compiler.sim.rows import DWORDS, Row

_LITERAL, _OFF = 255, 0x7F
_MAX_SGPR = 102
_SPECIAL = {106, 107, 124, 126, 127}
_EXTENSIONS = {249: "SDWA", 250: "DPP"}
_ROW_OF = {format_: {number: ROWS[name] for number, name in numbers.items()} for format_, numbers in OPCODES.items()}


def decode(code: bytes, address: int = 0) -> list[Instruction]:
    """The instructions of a kernel whose first byte lies at `address`.

    Raises:
        DecodeError: bytes that are no instruction, an opcode, operand or modifier without a meaning here, a
            branch to an address where no instruction starts, or code that can run past its end.
    """
    instructions, at = [], 0
    while at < len(code):
        instruction = decode_one(code, address, at)
        instructions.append(instruction)
        at += instruction.size
    starts = {instruction.address for instruction in instructions}
    for instruction in instructions:
        if instruction.row.kind == "branch" and instruction.operands[0].number not in starts:
            raise DecodeError(f"0x{instruction.address:x}: {instruction} leads to no instruction of this kernel")
    if not instructions or instructions[-1].row.name not in ("s_endpgm", "s_branch"):
        raise DecodeError("the code of the kernel does not end with s_endpgm or s_branch")
    return instructions


def decode_one(code: bytes, address: int = 0, at: int = 0) -> Instruction:
    """The instruction at byte `at` of the code whose first byte lies at `address`; errors as in `decode`."""
    return _Decoder(code, at, address + at).instruction()


class _Decoder:
    """Decodes one instruction."""

    def __init__(self, code: bytes, at: int, address: int) -> None:
        self.raw, self.address = code[at : at + 12], address
        if len(self.raw) < 4:
            raise self.error("the code ends inside an instruction")
        self.size = 4
        self.word = int.from_bytes(self.raw[:4], "little")
        format_ = find_format(self.word)
        if format_ is None:
            raise self.error("no known encoding")
        self.format: Format = format_
        if format_.bits == 64:
            self.size = 8
            if len(self.raw) < 8:
                raise self.error("the code ends inside an instruction")
            self.word = int.from_bytes(self.raw[:8], "little")

    def error(self, reason: str) -> DecodeError:
        return DecodeError(f"0x{self.address:x}: {reason} ({self.raw[:8].hex(' ')})")

    def field(self, name: str) -> int:
        return self.format.read(self.word, name)

    def require_zero(self, *names: str) -> None:
        for name in names:
            if self.field(name):
                raise self.error(f"{self.format.name} with {name} = {self.field(name)} is not supported")

    def instruction(self) -> Instruction:
        row = _ROW_OF.get(self.format.name, {}).get(self.field("op"))
        if row is None:
            raise self.error(f"{self.format.name} opcode {self.field('op')} is not supported")
        if self.format.unknown_bits(self.word):
            raise self.error(f"{row.name}: bits 0x{self.format.unknown_bits(self.word):x} have no meaning here")
        operands, modifiers = _READERS[self.format.name](self, row)
        return Instruction(self.address, self.size, row, self.format.name, tuple(operands), modifiers)

    def scalar(self, number: int, dwords: int, type_: str = "") -> Operand:
        """A scalar register, by number; tuples are aligned to their size, to 4 at most."""
        if number % min(dwords, 4) or not (number + dwords <= _MAX_SGPR or number in _SPECIAL and dwords <= 2):
            raise self.error(f"scalar register {number} for an operand of {dwords} dwords is not supported")
        return Operand("s", number, dwords, type_)

    def vector(self, number: int, dwords: int, *, accumulator: int = 0, type_: str = "") -> Operand:
        """A vector register; tuples are aligned to 2."""
        if number + dwords > 256 or dwords > 1 and number % 2:
            raise self.error(f"vector register {number} for an operand of {dwords} dwords: out of range or unaligned")
        return Operand("a" if accumulator else "v", number, dwords, type_)

    def source(self, code: int, type_: str, *, accumulator: int = 0) -> Operand:
        """A source operand by its 8- or 9-bit code."""
        dwords = DWORDS.get(type_, 1)
        if code >= 256:
            return self.vector(code - 256, dwords, accumulator=accumulator, type_=type_)
        if accumulator:
            raise self.error(f"source {code} is marked as an accumulation register and is none")
        if code == _LITERAL:
            return self.literal(type_)
        if code in _EXTENSIONS:
            raise self.error(f"{_EXTENSIONS[code]} is not supported: no kernel needs it")
        if 128 <= code <= 208 or code in FLOATS:
            if code in FLOATS and dwords == 2 and type_ != "f64":
                raise self.error(f"a floating-point constant for a source of type {type_}")
            return Operand("inline", code, dwords, type_)
        return self.scalar(code, dwords, type_)

    def literal(self, type_: str) -> Operand:
        end = self.size + 4
        if self.format.bits == 64 or len(self.raw) < end:
            raise self.error("a literal that this encoding or the end of the code does not allow")
        if self.size != 4:
            raise self.error("two literals in one instruction")
        value = int.from_bytes(self.raw[self.size : end], "little")
        self.size = end
        return Operand("literal", value, DWORDS.get(type_, 1), type_)

    def sources(self, row: Row) -> list[str]:
        """Types of the encoded sources."""
        return [kind for kind in row.sources if kind != "scc"][1 if row.tied else 0 :]


Parts = tuple[list[Operand], dict[str, int]]


def _scalar_arithmetic(self: _Decoder, row: Row) -> Parts:
    """SOP1, SOP2, SOPC."""
    operands = []
    for type_ in row.results:
        if type_ != "scc":
            operands.append(self.scalar(self.field("sdst"), DWORDS[type_], type_))
    types = self.sources(row)
    operands += [self.source(self.field(f"ssrc{index}"), type_) for index, type_ in enumerate(types)]
    return operands, {}


def _scalar_constant(self: _Decoder, row: Row) -> Parts:
    """SOPK: the register is the result, or for compares the first source."""
    value = self.field("simm16")
    signed = value - (0x10000 if value & 0x8000 and not row.name.endswith("_u32") else 0)
    return [self.scalar(self.field("sdst"), 1, row.results[0]), Operand("k16", signed, 1, "k16")], {}


def _program_control(self: _Decoder, row: Row) -> Parts:
    """SOPP."""
    value = self.field("simm16")
    if row.kind == "branch":
        signed = value - (0x10000 if value & 0x8000 else 0)
        return [Operand("target", self.address + 4 + 4 * signed)], {}
    if row.kind == "wait":
        return [Operand("wait", value)], {}
    if row.kind == "nop":
        return [Operand("k16", value)], {}
    if value:
        raise self.error(f"{row.name} with the number {value} is not supported")
    return [], {}


def _vector_32(self: _Decoder, row: Row) -> Parts:
    """VOP1, VOP2, VOPC: lane masks are VCC, and are not encoded."""
    operands = []
    for type_ in row.results:
        if type_ == "mask":
            operands.append(Operand("s", 106, 2, "mask"))
        elif type_ == "scalar":
            operands.append(self.scalar(self.field("vdst"), 1, type_))
        else:
            operands.append(self.vector(self.field("vdst"), DWORDS[type_], type_=type_))
    for index, type_ in enumerate(row.sources):
        if type_ == "mask":
            operands.append(Operand("s", 106, 2, "mask"))
        elif index == 0:
            operands.append(_lane_source(self, self.field("src0"), type_))
        else:
            operands.append(self.vector(self.field("vsrc1"), DWORDS[type_], type_=type_))
    return operands, {}


def _lane_source(self: _Decoder, code: int, type_: str) -> Operand:
    """A source; those of lane reads are registers of one kind only."""
    if type_ == "v32" and code < 256 or type_ == "lane" and code >= 256:
        raise self.error(f"source {code} cannot be the {'register' if type_ == 'v32' else 'lane'} of a lane read")
    return self.source(code, type_)


def _vector_64(self: _Decoder, row: Row) -> Parts:
    """VOP3. With a lane mask as second result (VOP3B) bits 8 to 14 name it."""
    self.require_zero("clamp", "omod", "neg")
    compare, carry = row.results == ("mask",), len(row.results) == 2
    operands = []
    if carry:
        mask = self.field("abs") | self.field("op_sel") << 3
        operands.append(self.vector(self.field("vdst"), DWORDS[row.results[0]], type_=row.results[0]))
        operands.append(self.scalar(mask, 2, "mask"))
    else:
        self.require_zero("abs", "op_sel")
        if compare or row.results == ("scalar",):
            operands.append(self.scalar(self.field("vdst"), 2 if compare else 1, row.results[0]))
        else:
            operands.append(self.vector(self.field("vdst"), DWORDS[row.results[0]], type_=row.results[0]))
    for index, type_ in enumerate(row.sources):
        operands.append(_lane_source(self, self.field(f"src{index}"), type_))
    self.require_zero(*(f"src{index}" for index in range(len(row.sources), 3)))
    if len({operand.number for operand in operands[len(row.results) :] if operand.kind == "s"}) > 1:
        raise self.error(f"{row.name} reads two scalar registers")
    return operands, {}


def _matrix(self: _Decoder, row: Row) -> Parts:
    """MFMA: A and B may each lie in accumulation registers, C and D together."""
    self.require_zero("abid", "cbsz", "blgp")
    accumulator = self.field("acc_cd")
    operands = [self.vector(self.field("vdst"), DWORDS[row.results[0]], accumulator=accumulator)]
    for index, type_ in enumerate(row.sources):
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
    return operands, {}


def _scalar_memory(self: _Decoder, row: Row) -> Parts:
    self.require_zero("glc", "soffset_en")
    if not self.field("imm"):
        raise self.error(f"{row.name} without an immediate offset is not supported")
    offset = self.field("offset")
    return [
        self.scalar(self.field("sdata"), DWORDS[row.results[0]], row.results[0]),
        self.scalar(self.field("sbase") * 2, DWORDS[row.sources[0]], row.sources[0]),
        Operand("offset", offset - (1 << 21 if offset >> 20 else 0)),
    ], {}


def _cache_bits(self: _Decoder) -> dict[str, int]:
    """The hint nt; scopes and atomics that return are refused: no kernel needs them, and they order memory."""
    self.require_zero("sc0", "sc1")
    return {"nt": 1} if self.field("nt") else {}


def _buffer(self: _Decoder, row: Row) -> Parts:
    assert row.access is not None
    self.require_zero("lds", "idxen")
    offset, offen = self.field("offset"), self.field("offen")
    if not offen and self.field("vaddr"):
        raise self.error(f"{row.name} names an address register that it does not use")
    modifiers = {**({"offen": 1} if offen else {}), **({"offset": offset} if offset else {}), **_cache_bits(self)}
    operands = [
        self.vector(self.field("vdata"), row.access.dwords, accumulator=self.field("acc")),
        self.vector(self.field("vaddr"), 1) if offen else Operand("off", 0),
        self.scalar(self.field("srsrc") * 4, 4),
        self.source(self.field("soffset"), "u32"),
    ]
    return operands, modifiers


def _global(self: _Decoder, row: Row) -> Parts:
    assert row.access is not None
    self.require_zero("sve")
    if self.field("seg") != 2:
        raise self.error(f"{row.name}: address segment {self.field('seg')}; supported: 2 (global)")
    offset, base = self.field("offset"), self.field("saddr")
    offset -= 1 << 13 if offset >> 12 else 0
    modifiers = {**({"offset": offset} if offset else {}), **_cache_bits(self)}
    address = self.vector(self.field("addr"), 2 if base == _OFF else 1)
    based = Operand("off", 0) if base == _OFF else self.scalar(base, 2)
    accumulator = self.field("acc")
    loads = row.access.kind == "load"
    self.require_zero("data" if loads else "vdst")
    data = self.vector(self.field("vdst" if loads else "data"), row.access.dwords, accumulator=accumulator)
    return [data, address, based] if loads else [address, data, based], modifiers


def _local(self: _Decoder, row: Row) -> Parts:
    access = row.access
    assert access is not None
    self.require_zero("gds")
    accumulator, address = self.field("acc"), self.vector(self.field("addr"), 1)
    low, high = self.field("offset0"), self.field("offset1")
    offsets = {"offset0": low, "offset1": high} if access.count == 2 else {"offset": low | high << 8}
    modifiers = {name: value for name, value in offsets.items() if value}
    if row.kind == "permute":
        self.require_zero("acc", "data1")
        return [self.vector(self.field("vdst"), 1), address, self.vector(self.field("data0"), 1)], modifiers
    if access.kind == "load":
        self.require_zero("data0", "data1")
        return [self.vector(self.field("vdst"), access.dwords, accumulator=accumulator), address], modifiers
    self.require_zero("vdst", *(() if access.count == 2 else ("data1",)))
    fields = ("data0", "data1")[: access.count]
    data = [self.vector(self.field(field), access.dwords // access.count, accumulator=accumulator) for field in fields]
    return [address, *data], modifiers


_READERS: dict[str, Callable[[_Decoder, Row], Parts]] = {
    "SOP1": _scalar_arithmetic,
    "SOP2": _scalar_arithmetic,
    "SOPC": _scalar_arithmetic,
    "SOPK": _scalar_constant,
    "SOPP": _program_control,
    "VOP1": _vector_32,
    "VOP2": _vector_32,
    "VOPC": _vector_32,
    "VOP3": _vector_64,
    "MAI": _matrix,
    "SMEM": _scalar_memory,
    "MUBUF": _buffer,
    "FLAT": _global,
    "DS": _local,
}
