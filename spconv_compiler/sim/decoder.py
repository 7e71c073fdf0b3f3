"""The state of decoding one instruction: its bytes, fields, operands and errors. Shared by decode*.py."""

from __future__ import annotations

from typing import TypeAlias

from spconv_compiler.sim.encoding import Format, find_formats
from spconv_compiler.sim.errors import DecodeError
from spconv_compiler.sim.instruction import FLOATS, Operand
from spconv_compiler.sim.rows import DWORDS, Row

LITERAL = 255
MAX_SGPR = 102
_SPECIAL = {106, 107, 124, 126, 127}
EXTENSIONS = {249: "SDWA", 250: "DPP"}
# Types whose operands may be written as a float constant in 64 bits, and those that take none.
_WIDE_FLOATS = ("f64", "p32")
_INTEGER_HALVES = ("u16", "i16", "pki")

# (row, operands, modifiers of memory instructions, text of other modifiers)
Parts: TypeAlias = "tuple[Row, list[Operand], dict[str, int], list[str]]"


class Decoder:
    """Decodes one instruction at byte `at` of `code`, which lies at `address`."""

    def __init__(self, code: bytes, at: int, address: int) -> None:
        self.raw, self.address = code[at : at + 16], address
        if len(self.raw) < 4:
            raise self.error("the code ends inside an instruction")
        self.size = 4
        self.word = int.from_bytes(self.raw[:4], "little")
        self.formats = find_formats(self.word)
        if not self.formats:
            raise self.error("no known encoding")
        self.format: Format = self.formats[0]
        self.suffix = ""
        if self.format.bits == 64:
            self.word = self.take(4) << 32 | self.word

    def take(self, count: int) -> int:
        """The next bytes of the instruction as a number."""
        end = self.size + count
        if len(self.raw) < end:
            raise self.error("the code ends inside an instruction")
        value = int.from_bytes(self.raw[self.size : end], "little")
        self.size = end
        return value

    def error(self, reason: str) -> DecodeError:
        """What is wrong, with address and bytes."""
        return DecodeError(f"0x{self.address:x}: {reason} ({self.raw[:8].hex(' ')})")

    def field(self, name: str) -> int:
        """A field of the encoding."""
        return self.format.read(self.word, name)

    def require_zero(self, *names: str) -> None:
        """Fields that have no meaning here."""
        for name in names:
            if self.field(name):
                raise self.error(f"{self.format.name} with {name} = {self.field(name)} is not supported")

    def scalar(self, number: int, dwords: int, type_: str = "") -> Operand:
        """A scalar register, by number; tuples are aligned to their size, to 4 at most."""
        if number % min(dwords, 4) or not (number + dwords <= MAX_SGPR or number in _SPECIAL and dwords <= 2):
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
        if code == LITERAL:
            return self.literal(type_)
        if code in EXTENSIONS:
            raise self.error(f"{EXTENSIONS[code]} is not supported here")
        if 128 <= code <= 208 or code in FLOATS:
            if code in FLOATS and (dwords == 2 and type_ not in _WIDE_FLOATS or type_ in _INTEGER_HALVES):
                raise self.error(f"a floating-point constant for a source of type {type_}")
            return Operand("inline", code, dwords, type_)
        return self.scalar(code, dwords, type_)

    def literal(self, type_: str) -> Operand:
        """The dword behind the instruction; there is one at most."""
        if self.format.bits == 64 or len(self.raw) < self.size + 4:
            raise self.error("a literal that this encoding or the end of the code does not allow")
        if self.size != 4:
            raise self.error("two literals in one instruction")
        return Operand("literal", self.take(4), DWORDS.get(type_, 1), type_)

    def sources(self, row: Row) -> list[str]:
        """Types of the encoded sources."""
        return [kind for kind in row.sources if kind != "scc"][1 if row.tied else 0 :]

    def bits(self, name: str, value: int, count: int) -> str:
        """A modifier with a bit for each operand, such as op_sel:[0,1]."""
        return f"{name}:[{','.join(str(value >> index & 1) for index in range(count))}]"
