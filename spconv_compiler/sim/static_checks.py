"""Checks that need no run: waits and wait states on all paths of a kernel, by data flow over its blocks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spconv_compiler.sim import hazards, waits
from spconv_compiler.sim.cfg import Block, build_blocks
from spconv_compiler.sim.instruction import Instruction


@dataclasses.dataclass(frozen=True)
class Violation:
    """An instruction that may come too early, and why."""

    instruction: Instruction
    reason: str

    def __str__(self) -> str:
        return f"0x{self.instruction.address:x}: {self.instruction}\n  {self.reason}"


Step = Callable[[Any, Instruction], tuple[Any, list[str]]]
Join = Callable[[Any, Any], Any]


def check(instructions: Sequence[Instruction], *, overwritten: bool = True) -> list[Violation]:
    """Every violation of a kernel, in the order of addresses.

    overwritten: see hazards.step.
    """
    blocks = build_blocks(instructions)
    found = {}
    hazard_step = functools.partial(hazards.step, overwritten=overwritten)
    for step, join in ((waits.step, waits.join), (hazard_step, hazards.join)):
        for violation in _solve(blocks, instructions, step, join, {0: {}}, [0]):
            found[violation.instruction.address, violation.reason] = violation
    return [found[key] for key in sorted(found)]


def check_clauses(instructions: Sequence[Instruction]) -> list[Violation]:
    """Those violations alone that clauses make."""
    found = _solve(build_blocks(instructions), instructions, hazards.clause_step, hazards.join, {0: {}}, [0])
    by_address = {violation.instruction.address: violation for violation in found}
    return [by_address[address] for address in sorted(by_address)]


class Baseline:
    """What the checks know of a kernel, to look at many that differ in one wait or no-op that is weaker.

    Weaker instructions only add to the states: it is enough to go on from the block where they stand.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._blocks = build_blocks(instructions)
        self._before: list[dict[int, Any]] = []
        self._wrong = False
        for step, join in self._rules():
            before: dict[int, Any] = {0: {}}
            self._wrong |= any(True for _ in _solve(self._blocks, instructions, step, join, before, [0]))
            self._before.append(before)

    @staticmethod
    def _rules() -> list[tuple[Step, Join]]:
        return [(waits.step, waits.join), (hazards.step, hazards.join)]

    def finds(self, index: int, weaker: Sequence[Instruction]) -> bool:
        """Whether `check` finds something in a kernel whose instruction `index` is a weaker wait or no-op."""
        if self._wrong:
            return True
        number = next(number for number, block in enumerate(self._blocks) if index < block.end)
        # A wait counts for the first rules, a no-op for the second ones.
        which = 0 if weaker[index].row.kind == "wait" else 1
        before = dict(self._before[which])
        if number not in before:
            return False
        step, join = self._rules()[which]
        return any(True for _ in _solve(self._blocks, weaker, step, join, before, [number]))


def _solve(
    blocks: list[Block],
    instructions: Sequence[Instruction],
    step: Step,
    join: Join,
    before: dict[int, Any],
    waiting: list[int],
) -> Iterator[Violation]:
    """Runs `step` from some blocks on until nothing changes; states only gain entries and lose distance, so it ends.

    before: the states at the start of blocks; they are updated.
    """
    while waiting:
        number = waiting.pop()
        state = before[number]
        for item in instructions[blocks[number].start : blocks[number].end]:
            state, problems = step(state, item)
            yield from (Violation(item, problem) for problem in problems)
        for following in blocks[number].successors:
            joined = join(before[following], state) if following in before else state
            if following not in before or joined != before[following]:
                before[following] = joined
                waiting.append(following)
