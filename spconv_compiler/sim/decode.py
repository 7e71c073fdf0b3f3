"""From the bytes of a kernel to instructions. What is not known for certain is refused, with address and bytes."""

from __future__ import annotations

from collections.abc import Callable

from spconv_compiler.sim import decode_memory, decode_vector
from spconv_compiler.sim.decoder import Decoder, Parts
from spconv_compiler.sim.errors import DecodeError
from spconv_compiler.sim.instruction import HARDWARE_REGISTERS, Instruction, Operand
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.opcodes import OPCODES
from spconv_compiler.sim.rows import DWORDS, Row

_ROW_OF = {format_: {number: ROWS[name] for number, name in numbers.items()} for format_, numbers in OPCODES.items()}
# In VOP3P, the opcode that stands before an MFMA with scales.
_LOAD_SCALE = 0x2C


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
    self = Decoder(code, at, address + at)
    row = _row(self)
    if self.format.unknown_bits(self.word):
        raise self.error(f"{row.name}: bits 0x{self.format.unknown_bits(self.word):x} have no meaning here")
    format_ = self.format.name
    read = decode_vector.scaled_matrix if row.formats == ("SCALE",) else _READERS[format_]
    row, operands, modifiers, options = read(self, row)
    return Instruction(self.address, self.size, row, self.suffix or format_, tuple(operands), modifiers, tuple(options))


def _row(self: Decoder) -> Row:
    """The row of the opcode; of the formats with the same mark it decides which one it is."""
    for format_ in self.formats:
        name = format_.name
        if name == "FLAT":
            name = f"FLAT {decode_memory.SEGMENTS.get(format_.read(self.word, 'seg'), '')}"
        row = _ROW_OF.get(name, {}).get(format_.read(self.word, "op"))
        if row is not None:
            self.format = format_
            return row
    number = self.field("op")
    if self.formats[-1].name == "VOP3P" and number == _LOAD_SCALE and len(self.raw) >= 12:
        self.format = self.formats[-1]
        matrix = next(format_ for format_ in self.formats if format_.name == "MAI")
        following = _ROW_OF["MAI"].get(matrix.read(int.from_bytes(self.raw[8:12], "little"), "op"))
        if following is not None and following.name.endswith("f8f6f4"):
            return ROWS[following.name.replace("v_mfma_", "v_mfma_scale_")]
    raise self.error(f"{self.format.name} opcode {number} is not supported")


def _scalar_arithmetic(self: Decoder, row: Row) -> Parts:
    """SOP1, SOP2, SOPC."""
    operands = []
    for type_ in row.results:
        if type_ != "scc":
            operands.append(self.scalar(self.field("sdst"), DWORDS[type_], type_))
    types = self.sources(row)
    operands += [self.source(self.field(f"ssrc{index}"), type_) for index, type_ in enumerate(types)]
    return row, operands, {}, []


def _scalar_constant(self: Decoder, row: Row) -> Parts:
    """SOPK: the register is the result, or for compares the first source."""
    value = self.field("simm16")
    if row.kind in ("getreg", "setreg"):
        return _hardware_register(self, row, value)
    signed = value - (0x10000 if value & 0x8000 and not row.name.endswith("_u32") else 0)
    return row, [self.scalar(self.field("sdst"), 1, row.results[0]), Operand("k16", signed, 1, "k16")], {}, []


def _hardware_register(self: Decoder, row: Row, value: int) -> Parts:
    if value & 63 not in HARDWARE_REGISTERS:
        raise self.error(f"{row.name} of hardware register {value & 63} is not supported")
    register = Operand("hwreg", value)
    if row.kind == "getreg":
        return row, [self.scalar(self.field("sdst"), 1, "u32"), register], {}, []
    if row.name == "s_setreg_b32":
        return row, [register, self.scalar(self.field("sdst"), 1, "u32")], {}, []
    self.require_zero("sdst")
    return row, [register, Operand("literal", self.take(4), 1, "imm32")], {}, []


def _program_control(self: Decoder, row: Row) -> Parts:
    """SOPP."""
    value = self.field("simm16")
    if row.kind == "branch":
        signed = value - (0x10000 if value & 0x8000 else 0)
        return row, [Operand("target", self.address + 4 + 4 * signed)], {}, []
    if row.kind == "wait":
        return row, [Operand("wait", value)], {}, []
    if row.sources == ("k16",):
        return row, [Operand("k16", value)], {}, []
    if value:
        raise self.error(f"{row.name} with the number {value} is not supported")
    return row, [], {}, []


_READERS: dict[str, Callable[[Decoder, Row], Parts]] = {
    "SOP1": _scalar_arithmetic,
    "SOP2": _scalar_arithmetic,
    "SOPC": _scalar_arithmetic,
    "SOPK": _scalar_constant,
    "SOPP": _program_control,
    "VOP1": decode_vector.vector_32,
    "VOP2": decode_vector.vector_32,
    "VOPC": decode_vector.vector_32,
    "VOP3": decode_vector.vector_64,
    "VOP3P": decode_vector.vector_packed,
    "MAI": decode_vector.matrix,
    "SMEM": decode_memory.scalar_memory,
    "MUBUF": decode_memory.buffer,
    "FLAT": decode_memory.flat,
    "DS": decode_memory.local,
}
