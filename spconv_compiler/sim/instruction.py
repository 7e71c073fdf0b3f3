"""A decoded instruction and its operands, and their text in the compiler's notation."""

from __future__ import annotations

import dataclasses
import struct

from spconv_compiler.sim.rows import Row

VCC, M0, EXEC = 106, 124, 126
_NAMES = {106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi"}
_PAIRS = {106: "vcc", 126: "exec"}
# Inline constants: code -> (text, value).
FLOATS = {
    240: ("0.5", 0.5),
    241: ("-0.5", -0.5),
    242: ("1.0", 1.0),
    243: ("-1.0", -1.0),
    244: ("2.0", 2.0),
    245: ("-2.0", -2.0),
    246: ("4.0", 4.0),
    247: ("-4.0", -4.0),
}


@dataclasses.dataclass(frozen=True)
class Operand:
    """One operand.

    Attributes:
        kind: "v", "a", "s": a register; "inline", "literal": a constant; "k16": a signed 16-bit number;
            "off": no address register; "offset": of a scalar load; "target": a code address; "wait": wait counts.
        number: register number, code of an inline constant, or the value itself.
        dwords: registers of the operand.
        type: operand type of the row, or "" where it has none.
    """

    kind: str
    number: int
    dwords: int = 1
    type: str = ""

    def constant(self) -> int:
        """The 32 bits of an inline constant, literal or number (floats as f32, or f16 where the type says so).

        Integers are meant to be extended with their sign to 64 bits, literals of 64-bit operands with zeros.
        """
        if self.kind != "inline":
            return self.number & 0xFFFFFFFF
        if self.number in FLOATS:
            form = "e" if self.type == "f16" else "f"
            return int.from_bytes(struct.pack(f"<{form}", FLOATS[self.number][1]), "little")
        return (self.number - 128 if self.number <= 192 else 192 - self.number) & 0xFFFFFFFF

    def __str__(self) -> str:
        match self.kind:
            case "v" | "a":
                return _range(self.kind, self.number, self.dwords)
            case "s":
                if self.number in _PAIRS and self.dwords == 2:
                    return _PAIRS[self.number]
                return _NAMES.get(self.number) or _range("s", self.number, self.dwords)
            case "inline":
                found = FLOATS.get(self.number)
                return found[0] if found else str(self.number - 128 if self.number <= 192 else 192 - self.number)
            case "literal" | "offset" | "target":
                return hex(self.number)
            case "k16":
                return hex(self.number & 0xFFFF) if self.type == "k16" else str(self.number)
            case "wait":
                return str(Wait.read(self.number))
        return self.kind


@dataclasses.dataclass(frozen=True)
class Wait:
    """What s_waitcnt waits for: at most so many operations outstanding. The largest value waits for nothing."""

    vmcnt: int
    expcnt: int
    lgkmcnt: int

    NOTHING = (63, 7, 15)

    @staticmethod
    def read(bits: int) -> Wait:
        """From the 16 bits of the instruction."""
        return Wait(bits & 15 | bits >> 10 & 0x30, bits >> 4 & 7, bits >> 8 & 15)

    def __str__(self) -> str:
        counts = dataclasses.astuple(self)
        names = ("vmcnt", "expcnt", "lgkmcnt")
        shown = [f"{name}({n})" for name, n, no in zip(names, counts, self.NOTHING, strict=True) if n != no]
        return " ".join(shown)


def _range(file: str, first: int, count: int) -> str:
    return f"{file}{first}" if count == 1 else f"{file}[{first}:{first + count - 1}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction: where it lies, what it is, its operands in the order of the text, and its modifiers.

    modifiers: offset, offset0, offset1: bytes or elements; offen, nt: present with 1 when set.
    """

    address: int
    size: int
    row: Row
    format: str
    operands: tuple[Operand, ...]
    modifiers: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """With the suffix of the encoding, where there are two."""
        if len(self.row.formats) == 1:
            return self.row.name
        return self.row.name + ("_e64" if self.format == "VOP3" else "_e32")

    def __str__(self) -> str:
        text = f"{self.name} {', '.join(map(str, self.operands))}".strip()
        for name, value in self.modifiers.items():
            text += f" {name}:{value}" if name.startswith("offset") else f" {name}"
        return text
