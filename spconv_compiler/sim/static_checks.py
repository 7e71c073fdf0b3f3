"""Checks that need no run: waits and wait states on all paths of a kernel, by data flow over its blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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


def check(instructions: Sequence[Instruction]) -> list[Violation]:
    """Every violation of a kernel, in the order of addresses."""
    blocks = build_blocks(instructions)
    found = {}
    for rules in (waits, hazards):
        for violation in _solve(blocks, instructions, rules.step, rules.join):
            found[violation.instruction.address, violation.reason] = violation
    return [found[key] for key in sorted(found)]


def _solve(
    blocks: list[Block],
    instructions: Sequence[Instruction],
    step: Callable[[Any, Instruction], tuple[Any, list[str]]],
    join: Callable[[Any, Any], Any],
) -> list[Violation]:
    """Runs `step` over all blocks until nothing changes; states only gain entries and lose distance, so it ends."""
    before: dict[int, Any] = {0: {}}
    waiting = [0]
    violations: list[Violation] = []
    while waiting:
        number = waiting.pop()
        state = before[number]
        for item in instructions[blocks[number].start : blocks[number].end]:
            state, problems = step(state, item)
            violations += [Violation(item, problem) for problem in problems]
        for following in blocks[number].successors:
            joined = join(before[following], state) if following in before else state
            if following not in before or joined != before[following]:
                before[following] = joined
                waiting.append(following)
    return violations
