"""Control flow of a kernel: basic blocks and their successors, and the registers that an instruction touches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from spconv_compiler.sim.instruction import EXEC, M0, VCC, Instruction, Operand
from spconv_compiler.sim.rows import Access

Register = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Block:
    """Instructions [start, end) of a kernel, and the indices of the blocks that may follow."""

    start: int
    end: int
    successors: tuple[int, ...]


def build_blocks(instructions: Sequence[Instruction]) -> list[Block]:
    """The basic blocks in the order of their addresses; the first one is the entry."""
    index = {item.address: number for number, item in enumerate(instructions)}
    starts = {0}
    for number, item in enumerate(instructions):
        if item.row.kind == "branch":
            starts.add(index[item.operands[0].number])
        if item.row.kind in ("branch", "end") and number + 1 < len(instructions):
            starts.add(number + 1)
    ordered = sorted(starts)
    block_at = {start: number for number, start in enumerate(ordered)}
    blocks = []
    for start, end in zip(ordered, [*ordered[1:], len(instructions)], strict=True):
        last = instructions[end - 1]
        following = [] if last.row.kind == "end" or last.row.name == "s_branch" else [block_at[end]]
        if last.row.kind == "branch":
            following.append(block_at[index[last.operands[0].number]])
        blocks.append(Block(start, end, tuple(following)))
    return blocks


def registers_of(operand: Operand) -> Iterator[Register]:
    """Every register of an operand; none for constants."""
    if operand.kind in ("v", "a", "s"):
        for number in range(operand.number, operand.number + operand.dwords):
            yield operand.kind, number


def split_operands(item: Instruction) -> tuple[list[Operand], list[Operand]]:
    """(operands that are written, operands that are read), implied ones included."""
    row, operands = item.row, list(item.operands)
    if row.access is not None:
        return _split_memory(item, row.access)
    count = len([type_ for type_ in row.results if type_ != "scc"])
    written, read = operands[:count], operands[count:]
    if row.tied:
        read = [*written, *read]
    if row.kind == "saveexec":
        implied = Operand("s", EXEC, 2)
        return [*written, implied], [*read, implied]
    if row.kind == "cmpx":
        written = [*written, Operand("s", EXEC, 2)]
    if row.kind == "swap":
        read = [*written, *read]
    if row.kind == "branch" and "vcc" in row.name:
        read = [Operand("s", VCC, 2)]
    return written, read


def _split_memory(item: Instruction, access: Access) -> tuple[list[Operand], list[Operand]]:
    operands = list(item.operands)
    if access.lds:
        return [], [*operands, Operand("s", M0)]
    returns = access.returns or access.kind == "atomic" and "sc0" in item.modifiers
    if access.kind != "load" and not returns:
        return [], operands
    if item.row.kind == "buffer" and access.kind == "atomic":
        # The old value takes the place of the data.
        return [dataclasses.replace(operands[0], dwords=access.dwords)], operands
    return operands[:1], operands[1:]


def wait_states(item: Instruction) -> int:
    """Cycles of issue that an instruction stands for: s_nop n counts as n + 1."""
    return item.operands[0].number + 1 if item.row.name == "s_nop" else 1
