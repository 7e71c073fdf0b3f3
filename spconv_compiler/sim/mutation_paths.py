"""What reasons (mutation_reasons.py) need to know of a kernel's paths: data flow over its blocks.

* `one_wave_alone`: a barrier between accesses to local memory of which only the first wave executes any.
* `nothing_more_under_way`: a weaker wait behind which, on the paths that a wave can take, no more is under way wherever
  that could be noticed: of vector memory at barriers, at accesses to LDS, at whatever writes memory, and at the end; of
  LDS at barriers and at loads straight to LDS, reads too, but for those whose registers nothing reads any more. A
  condition that is computed once, and asked for at several branches, has one answer in a wave: a path on which it has
  two is none.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from spconv_compiler.sim.cfg import Block, build_blocks, registers_of, split_operands
from spconv_compiler.sim.instruction import EXEC, Instruction, Operand, Wait
from spconv_compiler.sim.waits import CAPACITY, COUNTED_BY_VMCNT

_WAVE = 64
# More conditions than these are not looked into: each doubles the work.
_MOST_CONDITIONS = 4
# What is known of a value, by its name: a first register and a number of them, or "scc".
Facts = dict[Hashable, Hashable]
_State = TypeVar("_State")


def counted(item: Instruction) -> bool:
    """Whether vmcnt counts an instruction."""
    return item.row.kind in COUNTED_BY_VMCNT and item.format != "SMEM"


def only_loads(item: Instruction) -> bool:
    """Whether an operation does nothing but write registers."""
    access = item.row.access
    return access is not None and access.kind == "load" and not access.lds


def one_wave_alone(instructions: Sequence[Instruction], index: int) -> bool:
    """Whether the barrier at `index` orders nothing: only the first wave is at work since and until other barriers.

    Its own accesses to local memory stay in order without it. No wave may wait in front of it for what it began before
    that: neither for local memory nor for anything that vmcnt counts, but for loads to registers.
    """
    first = _states(instructions, _first_wave, {})
    before, bounds = _around(instructions, index, back=True)
    after, _ = _around(instructions, index, back=False)
    if not all(first[at].get(_name(_EXEC)) for at in (*before, *after) if _touches_local(instructions[at])):
        return False
    blocks = build_blocks(instructions)
    moving = _under_way(instructions, blocks, MEMORY)
    local = _solve(instructions, blocks, _local_under_way, lambda a, b: a or b, False)
    return not any(moving[at] for at in (*before, index)) and not any(local[at] for at in bounds)


def _local_under_way(state: bool, item: Instruction) -> bool:
    if item.row.kind == "wait":
        return state and Wait.read(item.operands[0].number).lgkmcnt > 0
    return state or item.row.kind in ("lds", "flat")


_EXEC = Operand("s", EXEC, 2)


def _first_wave(facts: Facts, item: Instruction) -> Facts:
    """Which masks are empty in all waves but the first: comparisons of the lane's number in v0, and what is cut out."""
    written, read = split_operands(item)
    row, result = item.row.name, dict[Hashable, Hashable]()
    held = [bool(facts.get(_name(operand))) for operand in item.operands]
    now = bool(facts.get(_name(_EXEC)))
    if row.startswith("v_cmp_") and written:
        result[_name(written[0])] = now or _below_wave(facts, item)
    elif row == "s_and_saveexec_b64":
        result = {_name(item.operands[0]): now, _name(_EXEC): now or held[1]}
    elif row in ("s_and_b64", "s_or_b64"):
        result[_name(item.operands[0])] = (any if row == "s_and_b64" else all)(held[1:])
    return {**_without(facts, written), **{name: True for name, holds in result.items() if holds}}


def _below_wave(facts: Facts, item: Instruction) -> bool:
    """Whether a comparison is v_cmp_gt_u32 with a number up to a wave's, and v0 is still as the kernel got it."""
    if item.row.name != "v_cmp_gt_u32" or item.format not in ("VOPC", "VOP3") or facts.get("v0 written"):
        return False
    limit, lane = item.operands[-2:]
    return limit.kind in ("inline", "literal") and limit.constant() <= _WAVE and (lane.kind, lane.number) == ("v", 0)


@dataclasses.dataclass(frozen=True)
class Queue:
    """Operations that come back in order.

    Attributes:
        counter: the field of Wait. capacity: of the counter.
        counts: whether an instruction is one of them. lasts: whether it does more than write registers.
        notices: whether an instruction may behave differently while one that lasts is under way.
    """

    counter: str
    capacity: int
    counts: Callable[[Instruction], bool]
    lasts: Callable[[Instruction], bool]
    notices: Callable[[Instruction], bool]


def nothing_more_under_way(instructions: Sequence[Instruction], weaker: Sequence[Instruction], queue: Queue) -> bool:
    """Whether a kernel with a weaker wait for a queue has nothing more of it under way where that is noticed.

    Not for LDS if there are flat instructions, which come back in any order.
    """
    if queue is LDS and any(item.row.kind == "flat" for item in instructions):
        return False
    blocks = build_blocks(instructions)
    known = _states(instructions, _conditions(instructions, blocks), {"exec lives": True})
    branches = dict[int, tuple[int, bool]]()
    for block in blocks:
        last = block.end - 1
        if instructions[last].row.name in ("s_cbranch_scc0", "s_cbranch_scc1"):
            asked = (known.get(last) or {}).get("scc")
            if isinstance(asked, tuple):
                branches[last] = asked[0], asked[1] == (instructions[last].row.name == "s_cbranch_scc1")
    conditions = sorted({condition for condition, _ in branches.values()})[:_MOST_CONDITIONS]
    for values in itertools.product((False, True), repeat=len(conditions)):
        answers = dict(zip(conditions, values, strict=True))
        paths = [_decided(block, instructions, branches, answers) for block in blocks]
        whole, less = (_under_way(items, paths, queue) for items in (instructions, weaker))
        for at in less:
            more = less[at] - whole[at] if queue.notices(instructions[at]) else frozenset()
            if not all(_in_vain(instructions, blocks, operation, at) for operation in {one[0] for one in more}):
                return False
    return True


def _in_vain(instructions: Sequence[Instruction], blocks: Sequence[Block], address: int, start: int) -> bool:
    """Whether the operation at an address is a read of LDS, and nothing from `start` on reads what it brings.

    On no path then, before a load has written the register in all lanes, does an instruction read it: the words may be
    overwritten while it is under way.
    """
    (operation,) = (item for item in instructions if item.address == address)
    if operation.row.kind != "lds" or operation.row.access is None or operation.row.access.kind != "load":
        return False
    whole, following = _states(instructions, _all_lanes, {_name(_EXEC): True}), _following(blocks)

    def used(register: tuple[str, int]) -> bool:
        seen, waiting = {start}, [start]
        while waiting:
            at = waiting.pop()
            written, read = (_all_registers(part) for part in split_operands(instructions[at]))
            if register in read:
                return True
            over = register in written and whole[at].get(_name(_EXEC)) and _brings_whole_registers(instructions[at])
            new = set[int]() if over else set(following.get(at, [])) - seen
            seen |= new
            waiting += new
        return False

    return not any(used(register) for register in _all_registers(split_operands(operation)[0]))


def _all_registers(operands: Sequence[Operand]) -> set[tuple[str, int]]:
    return {register for operand in operands for register in registers_of(operand)}


def _brings_whole_registers(item: Instruction) -> bool:
    access = item.row.access
    return item.row.kind in ("lds", "buffer") and access is not None and only_loads(item) and "d16" not in item.row.name


def _all_lanes(facts: Facts, item: Instruction) -> Facts:
    """Which masks are those of all lanes that the kernel began with."""
    kept, row = _without(facts, split_operands(item)[0]), item.row.name
    if row == "s_and_saveexec_b64" and facts.get(_name(_EXEC)):
        kept[_name(item.operands[0])] = True
    if row == "s_or_b64" and any(facts.get(_name(operand)) for operand in item.operands[1:]):
        kept[_name(item.operands[0])] = True
    return kept


def _decided(
    block: Block, instructions: Sequence[Instruction], branches: dict[int, tuple[int, bool]], answers: dict[int, bool]
) -> Block:
    """A block with the successor that its condition leaves; `branches`: condition, and its value where it jumps."""
    number, jumps = branches.get(block.end - 1, (-1, False))
    if number not in answers:
        return block
    # The last one is where the branch leads, see build_blocks.
    kept = block.successors[-1] if answers[number] == jumps else block.successors[0]
    return Block(block.start, block.end, (kept,))


def _conditions(instructions: Sequence[Instruction], blocks: Sequence[Block]) -> Callable[[Facts, Instruction], Facts]:
    """A step that follows conditions: (address of what computed it, whether it is that or its opposite)."""
    again = {instructions[at].address for block in _in_loops(blocks) for at in range(block.start, block.end)}

    def step(facts: Facts, item: Instruction) -> Facts:
        written, _ = split_operands(item)
        row, operands, scc = item.row.name, item.operands, facts.get("scc")
        kept = _without(facts, written)
        if "scc" in item.row.results or row.startswith("s_cmp"):
            kept.pop("scc", None)
        numbers = [operand.constant() if operand.kind == "inline" else None for operand in operands]
        once = item.address not in again
        if row == "s_cselect_b64" and numbers[1:] == [0xFFFFFFFF, 0] and (scc is not None or once):
            kept["scc"] = kept[_name(operands[0])] = scc if scc is not None else (item.address, True)
        elif row == "s_cmpk_lt_i32" and once:
            kept["scc"] = kept["below", _name(operands[0]), operands[1].number] = (item.address, True)
        elif row == "s_cmpk_gt_i32":
            # Above n is the opposite of below n + 1.
            below = facts.get(("below", _name(operands[0]), operands[1].number + 1))
            kept.update({"scc": (below[0], not below[1])} if isinstance(below, tuple) else {})
        elif row == "s_cselect_b32" and numbers[1:] == [1, 0] and scc is not None:
            kept[_name(operands[0])] = scc
        elif row == "s_cmp_lg_u32" and numbers[1] == 1:
            put_aside = facts.get(_name(operands[0]))
            kept.update({"scc": (put_aside[0], not put_aside[1])} if isinstance(put_aside, tuple) else {})
        elif row == "s_and_b64" and _name(operands[2]) == _name(_EXEC) and facts.get("exec lives"):
            asked = facts.get(_name(operands[1]))
            kept.update({"scc": asked} if asked is not None else {})
        return _lives(facts, kept, item, written)

    return step


def _lives(facts: Facts, kept: Facts, item: Instruction, written: Sequence[Operand]) -> Facts:
    """Adds to `kept` whether some lane is at work, also in masks that are put aside."""
    lives, row = facts.get("exec lives"), item.row.name
    if not _all_registers([_EXEC]) & _all_registers(written):
        return kept
    kept.pop("exec lives", None)
    if row == "s_and_saveexec_b64" and lives:
        kept["lives", _name(item.operands[0])] = True
    if row == "s_or_b64" and any(facts.get(("lives", _name(operand))) for operand in item.operands[1:]):
        kept["exec lives"] = True
    return kept


def _in_loops(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        seen, waiting = set[int](), list(block.successors)
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                waiting += blocks[number].successors
        if any(blocks[number] is block for number in seen):
            yield block


def _under_way(
    instructions: Sequence[Instruction], blocks: Sequence[Block], queue: Queue
) -> dict[int, frozenset[tuple[int, int]]]:
    """Before each instruction that is reached: (operation, younger ones) of what lasts and may be under way there."""

    def step(state: frozenset[tuple[int, int]], item: Instruction) -> frozenset[tuple[int, int]]:
        if item.row.kind == "wait":
            most = getattr(Wait.read(item.operands[0].number), queue.counter)
            return frozenset(one for one in state if one[1] < most)
        if not queue.counts(item):
            return state
        aged = {(at, younger + 1) for at, younger in state if younger + 1 < queue.capacity}
        return frozenset(aged | {(item.address, 0)} if queue.lasts(item) else aged)

    return _solve(instructions, blocks, step, lambda a, b: a | b, frozenset())


def _more_than_loads(item: Instruction) -> bool:
    return counted(item) and not only_loads(item)


def _notices_memory(item: Instruction) -> bool:
    return item.row.kind in ("barrier", "end") or _touches_local(item) or _more_than_loads(item)


def _touches_local(item: Instruction) -> bool:
    return item.row.kind in ("lds", "flat") or _to_local(item)


def _to_local(item: Instruction) -> bool:
    """Whether it is a load straight to LDS, which is not in order with LDS instructions."""
    return item.row.access is not None and item.row.access.lds


def _notices_local(item: Instruction) -> bool:
    return item.row.kind == "barrier" or _to_local(item)


MEMORY = Queue("vmcnt", CAPACITY["vm"], counted, _more_than_loads, _notices_memory)
# Those of scalar memory share the counter, and come back in any order: without them no fewer of LDS are under way.
LDS = Queue(
    "lgkmcnt", CAPACITY["lds"], lambda item: item.row.kind in ("lds", "permute"),
    lambda item: item.row.kind == "lds", _notices_local,
)  # fmt: skip


def _around(instructions: Sequence[Instruction], index: int, *, back: bool) -> tuple[list[int], list[int]]:
    """Numbers of what lies between the barrier at `index` and other ones, on paths from it or to it; and of those."""
    following = _following(build_blocks(instructions))
    if back:
        before = dict[int, list[int]]()
        for at, successors in following.items():
            for other in successors:
                before.setdefault(other, []).append(at)
        following = before
    seen, bounds, waiting = set[int](), set[int](), list(following.get(index, []))
    while waiting:
        at = waiting.pop()
        if instructions[at].row.kind == "barrier":
            bounds.add(at)
        elif at not in seen:
            seen.add(at)
            waiting += following.get(at, [])
    return sorted(seen), sorted(bounds)


def _following(blocks: Sequence[Block]) -> dict[int, list[int]]:
    """Numbers of the instructions that may come next, of each."""
    following = dict[int, list[int]]()
    for block in blocks:
        for at in range(block.start, block.end - 1):
            following[at] = [at + 1]
        following[block.end - 1] = [blocks[number].start for number in block.successors]
    return following


def _name(operand: Operand) -> Hashable:
    return operand.kind, operand.number, operand.dwords


def _without(facts: Facts, written: Sequence[Operand]) -> Facts:
    """Facts that hold when these registers have other values."""
    gone = _all_registers(written)
    kept = {name: fact for name, fact in facts.items() if not gone & set(_registers(name))}
    if ("v", 0) in gone:
        kept["v0 written"] = True
    return kept


def _registers(name: Hashable) -> Iterator[tuple[str, int]]:
    if isinstance(name, tuple) and name[0] in ("lives", "below"):
        name = name[1]
    if isinstance(name, tuple) and len(name) == 3:
        yield from registers_of(Operand(*name))


def _states(
    instructions: Sequence[Instruction], step: Callable[[Facts, Instruction], Facts], entry: Facts
) -> dict[int, Facts]:
    """Before each instruction that is reached: the facts that hold on all paths."""

    def join(a: Facts, b: Facts) -> Facts:
        both = {name: fact for name, fact in a.items() if b.get(name) == fact}
        return {**both, "v0 written": True} if "v0 written" in (a.keys() | b.keys()) else both

    return _solve(instructions, build_blocks(instructions), step, join, entry)


def _solve(
    instructions: Sequence[Instruction],
    blocks: Sequence[Block],
    step: Callable[[_State, Instruction], _State],
    join: Callable[[_State, _State], _State],
    entry: _State,
) -> dict[int, _State]:
    """States before each instruction that is reached, when nothing changes any more."""
    states, waiting = {0: entry}, [0]
    while waiting:
        block = blocks[waiting.pop()]
        state = states[block.start]
        for at in range(block.start, block.end):
            states[at] = state
            state = step(state, instructions[at])
        for number in block.successors:
            start = blocks[number].start
            joined = join(states[start], state) if start in states else state
            if start not in states or joined != states[start]:
                states[start] = joined
                waiting.append(number)
    return states
