"""Chains of instructions behind an MFMA whose result a second MFMA overwrites, whole or in part.

A chain is: an MFMA; VALU instructions that touch none of its registers; an MFMA whose D overlaps that of the first and
whose C is a constant, its own D or the D of the first; and an instruction that reads or overwrites one of these
results. `python hazard_chains.py` asks LLVM's hazard recogniser for the wait states that it puts before each of them
and records them in hazard_chains.json. It needs what hazard_pairs.py needs.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Iterator

from hazard_pairs import ask_llvm

RECORD = pathlib.Path(__file__).with_suffix(".json")
# Where the first D begins; operands A and B of the three MFMAs, which nobody writes; where VALU results go.
_D, _OPERANDS, _ASIDE = 64, (128, 144, 160), 32


@dataclasses.dataclass(frozen=True)
class Matrix:
    """An MFMA: its text, its name in machine IR, registers of D and of A, what follows C in both notations."""

    asm: str
    machine: str
    total: int
    operand: int
    flags: str = ", 0, 0, 0"


# With 4, 8 and 16 passes, small and large results, and those of f32, which wait two states less.
MATRICES = {
    "bf16 16": Matrix("v_mfma_f32_16x16x32_bf16", "F32_16X16X32_BF16", 4, 4),
    "bf16 32": Matrix("v_mfma_f32_32x32x16_bf16", "F32_32X32X16_BF16", 16, 4),
    "i8 16": Matrix("v_mfma_i32_16x16x64_i8", "I32_16X16X64_I8", 4, 4),
    "f32 16": Matrix("v_mfma_f32_16x16x4_f32", "F32_16X16X4F32", 4, 1),
    "f32 32": Matrix("v_mfma_f32_32x32x2_f32", "F32_32X32X2F32", 16, 1),
    "f8 16": Matrix("v_mfma_f32_16x16x128_f8f6f4", "F32_16X16X128_F8F6F4_f8_f8", 4, 8, ", 0, 0"),
    "f8 32": Matrix("v_mfma_f32_32x32x64_f8f6f4", "F32_32X32X64_F8F6F4_f8_f8", 16, 8, ", 0, 0"),
}
# Uses of a register or a run of them: registers, assembly text, machine IR, what the latter defines.
_BUFFER = "$vgpr1, $sgpr4_sgpr5_sgpr6_sgpr7, 0, 0, 0, 0, implicit $exec"
_PLAIN = {
    "valu read": (1, "v_add_u32_e32 v2, {0}, v3", "$vgpr2 = V_ADD_U32_e32 {0}, $vgpr3, implicit $exec"),
    "valu write": (1, "v_add_u32_e32 {0}, v2, v3", "{0} = V_ADD_U32_e32 $vgpr2, $vgpr3, implicit $exec"),
    "store": (4, "buffer_store_dwordx4 {0}, v1, s[4:7], 0 offen",
              f"BUFFER_STORE_DWORDX4_OFFEN_exact {{0}}, {_BUFFER} :: (store (s128))"),
    "load": (1, "buffer_load_dword {0}, v1, s[4:7], 0 offen",
             f"{{0}} = BUFFER_LOAD_DWORD_OFFEN {_BUFFER} :: (load (s32))"),
    "lds write": (1, "ds_write_b32 v1, {0}",
                  "DS_WRITE_B32_gfx9 $vgpr1, {0}, 0, 0, implicit $exec :: (store (s32), addrspace 3)"),
}  # fmt: skip
_AGAIN = ("bf16 16", "bf16 32", "f32 16")
USES = (*_PLAIN, *(f"{name} {role}" for name in _AGAIN for role in "acd"))
_GAPS, _SHIFTS, _ADDENDS, _PARTS = (0, 3, 9), (-2, 0, 2, 4), ("0", "own", "first"), ("first", "both", "second")


@dataclasses.dataclass(frozen=True)
class Chain:
    """gap: VALU instructions between the MFMAs. shift: from the first D to the second one. addend: C of the second.
    part: which of the results the last instruction meets."""

    first: str
    second: str
    gap: int
    shift: int
    addend: str
    use: str
    part: str

    @property
    def name(self) -> str:
        return ", ".join(str(value) for value in dataclasses.astuple(self))

    def results(self) -> tuple[range, range]:
        """Registers of the first and of the second D."""
        at = _D + self.shift
        return range(_D, _D + MATRICES[self.first].total), range(at, at + MATRICES[self.second].total)

    def lines(self) -> list[str]:
        """All instructions as assembly text."""
        return [asm for asm, _ in self._instructions()]

    def machine(self) -> str:
        """The body of a function in machine IR that keeps the order."""
        body = "\n    SCHED_BARRIER 0\n    ".join(mir for _, mir in self._instructions())
        kept = ", ".join(f"implicit $vgpr{number}" for number in range(_ASIDE, 128))
        return f"    {body}\n    S_ENDPGM 0, {kept}, implicit $vgpr2\n"

    def possible(self) -> bool:
        """Whether the results overlap and the use has a place; large MFMAs must not have a C that is partly their D."""
        first, second = self.results()
        if not set(first) & set(second) or self._place() is None:
            return False
        return self.addend != "first" or len(first) == len(second) == 4 and self.shift != 0

    def _place(self) -> int | None:
        """The first register of the use: one of the part that is meant, with as many behind it as it takes."""
        first, second = (set(result) for result in self.results())
        part = {"first": first - second, "both": first & second, "second": second - first}[self.part]
        return min(part, default=None)

    def _instructions(self) -> Iterator[tuple[str, str]]:
        first, second = self.results()
        yield _mfma(MATRICES[self.first], first.start, None, 0)
        for number in range(_ASIDE, _ASIDE + self.gap):
            yield f"v_add_u32_e32 v{number}, v3, v3", f"$vgpr{number} = V_ADD_U32_e32 $vgpr3, $vgpr3, implicit $exec"
        addend = {"0": None, "own": second.start, "first": first.start}[self.addend]
        yield _mfma(MATRICES[self.second], second.start, addend, 1)
        place = self._place()
        assert place is not None
        if self.use in _PLAIN:
            count, asm, mir = _PLAIN[self.use]
            yield asm.format(_run(place, count, asm=True)), mir.format(_run(place, count, asm=False))
        else:
            name, _, role = self.use.rpartition(" ")
            yield _use(MATRICES[name], role, place)


def _run(start: int, count: int, *, asm: bool) -> str:
    if asm:
        return f"v{start}" if count == 1 else f"v[{start}:{start + count - 1}]"
    return "$" + "_".join(f"vgpr{number}" for number in range(start, start + count))


def _mfma(matrix: Matrix, result: int, addend: int | None, which: int) -> tuple[str, str]:
    return _written(matrix, result, _OPERANDS[which], addend)


def _use(matrix: Matrix, role: str, place: int) -> tuple[str, str]:
    """An MFMA that has the register as A, as the start of its C or as the start of its D."""
    return _written(
        matrix, place if role == "d" else 96, place if role == "a" else _OPERANDS[2], place if role == "c" else None
    )


def _written(matrix: Matrix, result: int, operand: int, addend: int | None) -> tuple[str, str]:
    texts = []
    for asm in (True, False):
        d, a, b = (
            _run(start, count, asm=asm)
            for start, count in ((result, matrix.total), (operand, matrix.operand), (_OPERANDS[0], matrix.operand))
        )
        c = "0" if addend is None else _run(addend, matrix.total, asm=asm)
        texts.append(f"{matrix.asm} {d}, {a}, {b}, {c}" if asm else f"{a}, {b}, {c}{matrix.flags}")
    early = "early-clobber " if matrix.total == 16 else ""
    d = _run(result, matrix.total, asm=False)
    return texts[0], f"{early}{d} = V_MFMA_{matrix.machine}_vgprcd_e64 {texts[1]}, implicit $mode, implicit $exec"


def chains() -> Iterator[Chain]:
    """Every chain that is possible."""
    for values in itertools.product(MATRICES, MATRICES, _GAPS, _SHIFTS, _ADDENDS, USES, _PARTS):
        chain = Chain(*values)
        if chain.possible():
            yield chain


def inserted(chain: Chain, lines: list[str]) -> list[int] | None:
    """Wait states that LLVM puts before each instruction but the first; None where it puts anything but s_nop."""
    states, found, left = 0, list[int](), chain.lines()
    for line in lines:
        text = re.sub(r"\s+", " ", line.partition(";")[0]).strip()
        if left and text == left[0]:
            found.append(states)
            left, states = left[1:], 0
        elif text.startswith("s_nop"):
            states += int(text.split()[1]) + 1
        else:
            return None
    return found[1:] if not left else None


# Every 13th chain is recorded: 13 divides none of the numbers of choices, so that all combinations of a few occur.
_STRIDE = 13


def recorded() -> list[Chain]:
    """The chains that hazard_chains.json has."""
    return list(itertools.islice(chains(), 0, None, _STRIDE))


def read_record() -> dict[str, tuple[int, int]]:
    """Name of a chain -> wait states before the second MFMA and before the last instruction."""
    data = json.loads(RECORD.read_text())
    return {
        f"{pair}, {rest}": (before[0], before[1])
        for pair, others in data["waits"].items()
        for rest, before in others.items()
    }


def ask(some: list[Chain]) -> dict[str, tuple[int, int]]:
    """What LLVM says of some chains, as read_record has it.

    Raises:
        ValueError: LLVM puts wait states where none are needed, or something else between the instructions.
    """
    found = {}
    for start in range(0, len(some), 500):
        part = some[start : start + 500]
        for chain, lines in zip(part, ask_llvm([chain.machine() for chain in part]), strict=True):
            states = inserted(chain, lines)
            if states is None or any(states[: chain.gap]):
                raise ValueError(f"{chain.name}: {lines}")
            found[chain.name] = states[chain.gap], states[chain.gap + 1]
    return found


def main() -> None:
    """Writes hazard_chains.json."""
    waits: dict[str, dict[str, tuple[int, int]]] = {}
    for name, states in ask(recorded()).items():
        first, second, rest = name.split(", ", 2)
        waits.setdefault(f"{first}, {second}", {})[rest] = states
    made_by = json.dumps(f"triton {importlib.metadata.version('triton')}")
    text = ",\n".join(f"{json.dumps(pair)}: {json.dumps(others)}" for pair, others in waits.items())
    RECORD.write_text(f'{{"made_by": {made_by}, "waits": {{\n{text}\n}}}}\n')
    sys.stdout.write(f"{sum(map(len, waits.values()))} chains\n")


if __name__ == "__main__":
    main()
