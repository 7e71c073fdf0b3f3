"""Weakens what keeps a kernel correct, one place at a time: the checks must notice every change that matters.

`python -m spconv_compiler.sim.mutation kernel.elf …` prints the share that is caught, and what is not.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Sequence

from spconv_compiler.sim.cfg import build_blocks
from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.instruction import Instruction, Operand, Wait
from spconv_compiler.sim.static_checks import check


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A kernel whose instruction number `index` is weaker: what was done to it, and all its instructions."""

    index: int
    change: str
    instructions: tuple[Instruction, ...]

    def caught(self) -> bool:
        """Whether the static checks find something wrong."""
        return bool(check(self.instructions))


def wait_mutants(instructions: Sequence[Instruction]) -> Iterator[Mutant]:
    """Every counter of every s_waitcnt dropped, and waiting for one operation less; every s_nop one state shorter."""
    for index, item in enumerate(instructions):
        for change, operand in _weaker(item):
            weaker = dataclasses.replace(item, operands=(operand,))
            yield Mutant(index, change, (*instructions[:index], weaker, *instructions[index + 1 :]))


def _weaker(item: Instruction) -> Iterator[tuple[str, Operand]]:
    if item.row.name == "s_nop":
        # One state shorter than s_nop 0 is no instruction at all: -1 stands for that.
        yield "s_nop shorter by one", Operand("k16", item.operands[0].number - 1)
    if item.row.kind != "wait":
        return
    wait = Wait.read(item.operands[0].number)
    for name, count, nothing in zip(
        ("vmcnt", "expcnt", "lgkmcnt"), dataclasses.astuple(wait), Wait.NOTHING, strict=True
    ):
        if count != nothing:
            yield f"{name} dropped", _encode(dataclasses.replace(wait, **{name: nothing}))
            yield f"{name} raised by one", _encode(dataclasses.replace(wait, **{name: count + 1}))


def _encode(wait: Wait) -> Operand:
    return Operand("wait", wait.vmcnt & 15 | wait.vmcnt >> 4 << 14 | wait.expcnt << 4 | wait.lgkmcnt << 8)


def unreachable(instructions: Sequence[Instruction]) -> set[int]:
    """Numbers of the instructions that no path reaches: padding behind a jump."""
    blocks = build_blocks(instructions)
    seen, waiting = {0}, [0]
    while waiting:
        new = set(blocks[waiting.pop()].successors) - seen
        seen |= new
        waiting += new
    return {
        index for number, block in enumerate(blocks) if number not in seen for index in range(block.start, block.end)
    }


def report(code: bytes) -> Iterator[str]:
    """Lines that say, for every kernel of a code object, how many wait mutants are caught and which are not."""
    for name, kernel in CodeObject(code).kernels.items():
        instructions = decode(kernel.code, kernel.address)
        dead = unreachable(instructions)
        mutants = list(wait_mutants(instructions))
        missed = [mutant for mutant in mutants if not mutant.caught()]
        yield f"{name}: {len(mutants) - len(missed)} of {len(mutants)} caught"
        for mutant in missed:
            item = instructions[mutant.index]
            reason = "no path leads here" if mutant.index in dead else "no rule needs it"
            yield f"  0x{item.address:x}: {item}: {mutant.change}: {reason}"


if __name__ == "__main__":
    for path in sys.argv[1:]:
        for line in report(pathlib.Path(path).read_bytes()):
            sys.stdout.write(f"{line}\n")
