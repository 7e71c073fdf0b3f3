"""Why a mutant (mutation.py) that no check notices changes nothing, where that can be shown on all paths.

A wait for vector memory that lets one more operation be under way differs from the wait before it in that operation
alone. If it writes registers, the static checks have looked at every use of them. If it does anything else, if the wait
is gone, or if it is one for LDS (whose words may be overwritten before they are read), all paths are followed, to see
whether more is under way anywhere where that matters (mutation_paths.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.sim.cfg import build_blocks
from spconv_compiler.sim.instruction import Instruction, Wait
from spconv_compiler.sim.mutation_paths import LDS, MEMORY, counted, nothing_more_under_way, one_wave_alone, only_loads
from spconv_compiler.sim.static_checks import check

_LGKM = ("lds", "permute", "smem", "flat", "clock")


def reason(instructions: Sequence[Instruction], index: int, change: str, weaker: Sequence[Instruction]) -> str:
    """A sentence, or "" where it cannot be shown.

    Args:
        instructions: of the kernel. index: of the one that is weaker. change: as a Mutant has it. weaker: of the
            mutant, in which the static checks find nothing.
    """
    item = instructions[index]
    if item.row.name == "s_nop":
        return _of_no_op(index, instructions, weaker)
    wait = Wait.read(item.operands[0].number)
    queue, younger = (counted, wait.vmcnt) if change.startswith("vmcnt") else (_lgkmcnt, wait.lgkmcnt)
    found = sorted(nth_youngest(instructions, index, younger, queue))
    if not found:
        return "on no path are so many operations under way"
    if queue is _lgkmcnt:
        same = nothing_more_under_way(instructions, weaker, LDS)
        return "on every path that a wave can take, other waits cover what LDS is read or written for" * same
    if "raised" not in change or not all(only_loads(instructions[place]) for place in found):
        same = nothing_more_under_way(instructions, weaker, MEMORY)
        return "on every path that a wave can take, other waits cover what does more than write registers" * same
    named = ", ".join(f"0x{instructions[place].address:x} {instructions[place].row.name}" for place in found)
    return f"it stops waiting for {named}: another wait stands before every use of that"


def barrier_reason(instructions: Sequence[Instruction], index: int) -> str:
    """A sentence on the barrier at `index`, if it can be shown that nothing depends on it, or ""."""
    return "of all waves only the first uses local memory around it" * one_wave_alone(instructions, index)


def _lgkmcnt(item: Instruction) -> bool:
    return item.row.kind in _LGKM


def nth_youngest(
    instructions: Sequence[Instruction], index: int, younger: int, counts: Callable[[Instruction], bool]
) -> set[int]:
    """Numbers of the instructions with `younger` counted ones behind them on some path to the one at `index`."""
    blocks = build_blocks(instructions)
    before: dict[int, list[int]] = {block.start: [] for block in blocks}
    for block in blocks:
        for following in block.successors:
            before[blocks[following].start].append(block.end - 1)
    found, seen, waiting = set[int](), set[tuple[int, int]](), [(index, younger)]
    while waiting:
        at, left = waiting.pop()
        for place in before.get(at, [at - 1]):
            counted = counts(instructions[place])
            if counted and left == 0:
                found.add(place)
                continue
            state = place, left - counted
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return found


def _of_no_op(index: int, instructions: Sequence[Instruction], weaker: Sequence[Instruction]) -> str:
    place = index
    while place < len(instructions) and instructions[place].row.name == "s_nop":
        place += 1
    targets = {item.operands[0].number for item in instructions if item.row.kind == "branch"}
    if index < place < len(instructions) and instructions[place].address in targets:
        return f"it fills up to the aligned loop at 0x{instructions[place].address:x}"
    if not check(instructions, overwritten=False) and check(weaker, overwritten=False):
        return "it is for a register that another instruction has overwritten by then"
    return ""
