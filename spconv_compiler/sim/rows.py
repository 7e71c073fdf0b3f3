"""What the simulator knows of one opcode: encodings, operands, meaning. The rows stand in isa_*.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

# Dwords of an operand by its type. "f16": in the low half; "mask": of lanes, in scalar registers; "scc": not encoded.
DWORDS = {"u32": 1, "i32": 1, "f32": 1, "f16": 1, "u64": 2, "i64": 2, "mask": 2, "u128": 4, "u256": 8, "u512": 16}
TYPES = (*DWORDS, "k16", "scc", "v32", "lane", "scalar", "target", "wait")


@dataclasses.dataclass(frozen=True)
class Access:
    """What a memory instruction does.

    Attributes:
        kind: "load", "store" or "atomic". size: bytes of a lane.
        count: 2 for the forms with two LDS addresses; stride: elements that one step of their offsets skips.
        update: of atomics: the new value from old value and data. data: type of the elements of an atomic.
    """

    kind: str
    size: int
    count: int = 1
    stride: int = 1
    update: np.ufunc | None = None
    data: str = "u32"

    @property
    def dwords(self) -> int:
        """Registers of a lane that hold the data."""
        return -(-self.size * self.count // 4)


@dataclasses.dataclass(frozen=True)
class MatrixShape:
    """An MFMA: [m, k] times [k, n]; element: type of A and B; passes: of four cycles each."""

    m: int
    n: int
    k: int
    element: str
    passes: int


@dataclasses.dataclass(frozen=True)
class Row:
    """One opcode.

    Attributes:
        name: without _e32 and _e64.
        kind: who executes it: "salu", "valu", "lane", "smem", "buffer", "global", "lds", "permute", "mfma", or for
            control "branch", "end", "barrier", "wait", "nop".
        formats: encodings it has.
        results, sources: operand types in the order of the assembly text.
        meaning: from arrays of the sources to an array, or a tuple of arrays, of the results.
        tied: the first source is the old value of the result and is not encoded.
        upward: no bit of the result depends on higher bits of the sources. Compilers leave the upper half of a
            64-bit source undefined where they use the lower half of the result only.
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
