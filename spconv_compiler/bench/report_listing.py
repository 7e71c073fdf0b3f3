"""The assembly of a kernel for the report page: a colour for each class, how often each line ran, where jumps lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from spconv_compiler.sim.cfg import build_blocks
from spconv_compiler.sim.counters import instruction_class
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.listing import line_of


def annotated(instructions: Sequence[Instruction], by_address: Mapping[int, int], waves: int) -> str:
    """A table: line, address, runs of a wave, a bar of the share of all runs, the instruction.

    Args:
        by_address: wave instructions by address. waves: of the launch.
    """
    total = sum(by_address.values()) or 1
    most = max(by_address.values(), default=0) or 1
    starts = {instructions[block.start].address for block in build_blocks(instructions) if block.start}
    rows = []
    for number, item in enumerate(instructions, 1):
        runs = by_address.get(item.address, 0)
        kind = instruction_class(item)
        state = " block" if item.address in starts else ""
        state += "" if runs else " dead"
        share = f'<i style="width:{100 * runs / most:.1f}%"></i>'
        rows.append(
            f'<tr class="k-{kind}{state}" id="x{item.address:x}"><td>{number}</td><td>{item.address:x}</td>'
            f'<td title="{runs / total:.2%} of all">{runs / max(1, waves):,.4g}</td><td class="heat">{share}</td>'
            f"<td>{escape(str(item))}{_note(item, instructions)}</td></tr>"
        )
    head = "<tr><th>line</th><th>address</th><th>runs a wave</th><th></th><th>instruction</th></tr>"
    return f'<table class="asm">{head}{"".join(rows)}</table>'


def _note(item: Instruction, instructions: Sequence[Instruction]) -> str:
    """Where a branch leads; a jump back is a loop."""
    if item.row.kind != "branch":
        return ""
    target = item.operands[0].number
    line = line_of(instructions, target)
    arrow = "↺" if target <= item.address else "↓"
    return f' <a href="#x{target:x}">{arrow} line {line}</a>'
