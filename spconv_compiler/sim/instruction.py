"""A decoded instruction and its operands, and their text in the compiler's notation."""

from __future__ import annotations

import dataclasses
import struct

from spconv_compiler.sim.rows import Row

VCC, M0, EXEC = 106, 124, 126
# Hardware registers that s_getreg knows: MODE, and the number of the die.
HARDWARE_REGISTERS = {1: "HW_REG_MODE", 20: "HW_REG_XCC_ID"}
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
            "off": no address register; "offset": of a scalar load; "target": a code address; "wait": wait counts;
            "hwreg": part of a hardware register.
        number: register number, code of an inline constant, or the value itself.
        dwords: registers of the operand.
        type: operand type of the row, or "" where it has none; "implied": the text does not show it.
        neg, absolute, sext: what the text shows of modifiers; the row's meaning contains them.
    """

    kind: str
    number: int
    dwords: int = 1
    type: str = ""
    neg: bool = False
    absolute: bool = False
    sext: bool = False

    def constant(self) -> int:
        """The 32 bits of an inline constant, literal or number (floats as f32, or f16 where the type says so).

        Integers are meant to be extended with their sign to 64 bits, literals of 64-bit operands with zeros.
        """
        if self.kind != "inline":
            return self.number & 0xFFFFFFFF
        if self.number in FLOATS:
            form = "e" if self.type in ("f16", "pkf") else "f"
            return int.from_bytes(struct.pack(f"<{form}", FLOATS[self.number][1]), "little")
        return (self.number - 128 if self.number <= 192 else 192 - self.number) & 0xFFFFFFFF

    def bits64(self) -> int:
        """A constant as 64-bit operand; a float of f64 is a double, a literal of f64 its upper half."""
        if self.kind == "inline" and self.number in FLOATS and self.type == "f64":
            return int.from_bytes(struct.pack("<d", FLOATS[self.number][1]), "little")
        number = self.constant()
        if self.kind == "literal" and self.type == "f64":
            return number << 32
        negative = self.kind == "inline" and number >> 31 and self.number not in FLOATS
        return number | 0xFFFFFFFF00000000 if negative else number

    def __str__(self) -> str:
        text = self._text()
        if self.sext:
            text = f"sext({text})"
        if self.absolute:
            text = f"|{text}|"
        return f"-{text}" if self.neg else text

    def _text(self) -> str:
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
            case "hwreg":
                name, low, width = HARDWARE_REGISTERS[self.number & 63], self.number >> 6 & 31, (self.number >> 11) + 1
                return f"hwreg({name})" if (low, width) == (0, 32) else f"hwreg({name}, {low}, {width})"
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

    modifiers: offset, offset0, offset1: bytes or elements; offen, sc0, nt, sc1, lds: present with 1 when set;
        swizzle, scale_a, scale_b: numbers that `options` has in words.
    options: the text of all other modifiers; the row's meaning contains them.
    """

    address: int
    size: int
    row: Row
    format: str
    operands: tuple[Operand, ...]
    modifiers: dict[str, int] = dataclasses.field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """With the suffix of the encoding, where there are two."""
        if self.format in ("SDWA", "DPP"):
            return f"{self.row.name}_{self.format.lower()}"
        if len(self.row.formats) == 1:
            return self.row.name
        return self.row.name + ("_e64" if self.format == "VOP3" else "_e32")

    def __str__(self) -> str:
        shown = [str(operand) for operand in self.operands if operand.type != "implied"]
        text = f"{self.name} {', '.join(shown)}".strip()
        if self.row.kind == "smem" and "offset" in self.modifiers:
            return f"{text} offset:{hex(self.modifiers['offset'])}"
        for name, value in self.modifiers.items():
            if name in ("offen", "sc0", "nt", "sc1", "lds"):
                text += f" {name}"
            elif name.startswith("offset"):
                text += f" {name}:{value}"
        return " ".join([text, *self.options])
