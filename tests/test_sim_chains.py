"""The table of wait states against LLVM where an MFMA overwrites the result of another one (hazard_chains.py)."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util

import hazard_chains
import pytest
from hazard_chains import Chain

from spconv_compiler.sim import hazards
from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.cfg import registers_of, split_operands
from spconv_compiler.sim.decode import decode_one
from spconv_compiler.sim.instruction import Instruction

RECORD = hazard_chains.read_record()


@functools.cache
def decoded() -> dict[str, Instruction]:
    lines = sorted({line for chain in hazard_chains.recorded() for line in chain.lines()} | {"s_nop 0"})
    found = {}
    for start in range(0, len(lines), 1000):
        part = lines[start : start + 1000]
        found.update({line: decode_one(slot) for line, slot in zip(part, assemble(part), strict=True)})
    return found


def pause(states: int) -> Instruction:
    """As many wait states, of at least one."""
    no_op = decoded()["s_nop 0"]
    return dataclasses.replace(no_op, operands=(dataclasses.replace(no_op.operands[0], number=states - 1),))


def weaker(chains: list[Chain]) -> list[str]:
    """Where the table is content with one wait state less than LLVM inserts."""
    found = []
    for chain in chains:
        items, state = [decoded()[line] for line in chain.lines()], hazards.State()
        for item, theirs in zip(items, [*[0] * (chain.gap + 1), *RECORD[chain.name]], strict=True):
            # One state less stands for no instruction where LLVM inserts one.
            less = hazards.step(state, pause(theirs - 1))[0] if theirs > 1 else state
            if theirs and not hazards.step(less, item)[1]:
                found.append(f"{chain.name}: before {item} LLVM inserts {theirs}")
            if theirs:
                state, _ = hazards.step(state, pause(theirs))
            state, _ = hazards.step(state, item)
    return found


def test_no_chain_needs_less_than_llvm_inserts() -> None:
    chains = hazard_chains.recorded()
    assert {chain.name for chain in chains} == RECORD.keys() and len(chains) > 2500
    assert sum(last > 0 for _, last in RECORD.values()) > 1000
    assert weaker(chains) == []


def test_the_rule_of_overwritten_results_is_held_by_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result counts as long as some of it is left, and what is left has the wait of the MFMA that wrote it."""
    some = [chain for chain in hazard_chains.recorded() if (chain.first, chain.gap) == ("bf16 32", 0)]
    assert weaker(some) == []
    right = hazards.step

    def forgets(state: hazards.State, item: Instruction) -> tuple[hazards.State, list[str]]:
        """Drops the whole result when a part of it is overwritten."""
        after, problems = right(state, item)
        written = {register for operand in split_operands(item)[0] for register in registers_of(operand)}
        touched = [
            dataclasses.replace(source, registers=tuple(one for one in source.registers if one not in written))
            for source in state
            if source.kind == "mfma" and item.row.kind == "mfma" and set(source.registers) & written
        ]
        return {source: distance for source, distance in after.items() if source not in touched}, problems

    monkeypatch.setattr(hazards, "step", forgets)
    assert len(weaker(some)) > 10


def test_the_record_is_what_llvm_says() -> None:
    """Asks LLVM again, where one that reads machine IR is installed."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no LLVM that reads machine IR: triton is not installed")
    chosen = hazard_chains.recorded()[::25]
    assert hazard_chains.ask(chosen) == {chain.name: RECORD[chain.name] for chain in chosen}
