"""What the simulator knows of one opcode: encodings, operands, meaning. The rows stand in isa_*.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

# Dwords of an operand by its type. Carriers are uint32, or what the name says for i32, i64, u64, f32, f64.
# "f16", "u16", "i16": the low half counts, and a result has zeros above it; "h16": a result that keeps what is above;
# "b32": 32 bits that take the modifiers of a float; "pkf", "pki": two halves, f16 or integers; "p32": two f32;
# "mix": f32 or a half of f16; "acc": an accumulation register; "mask": of lanes, in scalar registers;
# "scc": not encoded.
DWORDS = {
    "u32": 1, "i32": 1, "f32": 1, "b32": 1, "f16": 1, "u16": 1, "i16": 1, "h16": 1, "pkf": 1, "pki": 1, "mix": 1,
    "acc": 1, "u64": 2, "i64": 2, "f64": 2, "p32": 2, "mask": 2, "u96": 3, "u128": 4, "u192": 6, "u256": 8, "u512": 16,
}  # fmt: skip
TYPES = (*DWORDS, "k16", "scc", "v32", "s32", "lane", "scalar", "target", "wait", "hwreg", "imm32")


@dataclasses.dataclass(frozen=True)
class Access:
    """What a memory instruction does.

    Attributes:
        kind: "load", "store" or "atomic". size: bytes of a lane.
        count: 2 for the forms with two LDS addresses; stride: elements that one step of their offsets skips.
        update: of atomics: the new value from old value and data. data: type of the elements of an atomic.
        signed: loads of bytes and halves extend the sign. half: "lo" or "hi": only this half of the register is
            written or read (d16), or "". lds: the data goes to local memory instead of registers.
        pair: of atomics: there are two values, the new one and the one to compare with (in LDS the other way round).
        returns: the old value is written to a register, always; vector memory has the modifier sc0 for that.
        tile: bits of the elements of a transposed LDS read, or 0.
    """

    kind: str
    size: int
    count: int = 1
    stride: int = 1
    update: Callable[..., Any] | None = None
    data: str = "u32"
    signed: bool = False
    half: str = ""
    lds: bool = False
    pair: bool = False
    returns: bool = False
    tile: int = 0

    @property
    def dwords(self) -> int:
        """Registers of a lane that hold the data."""
        return -(-self.size * self.count // 4)


@dataclasses.dataclass(frozen=True)
class MatrixShape:
    """An MFMA: [m, k] times [k, n]; element: type of A and B; passes: of four cycles each.

    other: type of B where it differs; result: type of C and D; scaled: A and B come with a scale for every 32 elements.
    """

    m: int
    n: int
    k: int
    element: str
    passes: int
    other: str = ""
    result: str = "f32"
    scaled: bool = False


@dataclasses.dataclass(frozen=True)
class LaneMove:
    """DPP: the value of the first source comes from another lane, and some lanes are not written.

    Attributes:
        control: the 9 bits that say which lane. rows, banks: masks of the rows of 16 lanes and banks of 4 to write.
        zero: where there is no lane to read from, or it is off, 0 is read; else the lane is not written.
    """

    control: int
    rows: int
    banks: int
    zero: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """One opcode.

    Attributes:
        name: without _e32 and _e64.
        kind: who executes it: "salu", "saveexec", "getreg", "setreg", "valu", "lane", "swap", "cmpx", "mfma", "smem",
            "clock", "buffer", "global", "flat", "scratch", "lds", "permute", or for control "branch", "end", "trap",
            "barrier", "wait", "nop", "cache".
        formats: encodings it has.
        results, sources: operand types in the order of the assembly text.
        meaning: from arrays of the sources to an array, or a tuple of arrays, of the results.
        tied: the first source is the old value of the result and is not encoded.
        upward: no bit of the result depends on higher bits of the sources. Compilers leave the upper half of a
            64-bit source undefined where they use the lower half of the result only.
        packed: "16", "32": the meaning is that of one half; "mix": sources are f32 or f16 (modifiers.py).
        saturated: the meaning with the modifier clamp, of integers; those of floats take it anyway.
        op_sel: the halves of 16-bit operands can be chosen.
        variant: the modifiers that `meaning` contains, as a short text; "" in the tables (modifiers.py).
        keeps: tied, and undefined bits of the old value do not count: the result has no use for them.
        lanes: how the first source comes from other lanes (DPP), or None.
    """

    name: str
    kind: str
    formats: tuple[str, ...]
    results: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    meaning: Callable[..., Any] | None = None
    access: Access | None = None
    matrix: MatrixShape | None = None
    tied: bool = False
    upward: bool = False
    packed: str = ""
    saturated: Callable[..., Any] | None = None
    op_sel: bool = False
    variant: str = ""
    keeps: bool = False
    lanes: LaneMove | None = None


def row(
    name: str,
    kind: str,
    formats: str,
    signature: str = "",
    meaning: Callable[..., Any] | None = None,
    **more: Any,
) -> Row:
    """A row from its signature, such as "u32 scc <- u32 u32"; formats are separated by spaces."""
    left, arrow, right = signature.partition("<-")
    results, sources = tuple(left.split()), tuple(right.split())
    if signature and not arrow or not set(results + sources) <= set(TYPES):
        raise ValueError(f"{name}: the signature {signature!r} is not understood")
    return Row(name, kind, tuple(formats.split()), results, sources, meaning, **more)
