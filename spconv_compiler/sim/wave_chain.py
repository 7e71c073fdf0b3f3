"""How long one wave alone would take: issue, dependences between registers, and waits for memory.

The kernel's blocks are walked in order, instruction by instruction: one that reads a register waits for its result,
s_waitcnt for the operations that it names, all of which come back in order. A block begins in the state that its most
frequent predecessor leaves; a loop's own end counts as one. Blocks are weighted by how often they ran.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from spconv_compiler.sim import chip
from spconv_compiler.sim.cfg import Block, Register, build_blocks, registers_of, split_operands, wait_states
from spconv_compiler.sim.counters import instruction_class
from spconv_compiler.sim.instruction import Instruction, Wait

_ROUNDS = 4
# Where the state notes until when the matrix unit is busy.
_MATRIX_PIPE: Register = ("matrix", 0)


@dataclasses.dataclass
class _State:
    """Cycles from now until registers are ready and outstanding operations are back; those oldest first."""

    ready: dict[Register, float] = dataclasses.field(default_factory=dict)
    vm: list[float] = dataclasses.field(default_factory=list)
    lgkm: list[float] = dataclasses.field(default_factory=list)

    def after(self, cycles: float) -> _State:
        """The same, so many cycles later."""
        left = {register: time - cycles for register, time in self.ready.items() if time > cycles}
        return _State(left, [time - cycles for time in self.vm], [time - cycles for time in self.lgkm])


def wave_cycles(
    instructions: Sequence[Instruction],
    by_address: Mapping[int, int],
    waves: int,
    latencies: Mapping[int, float],
    which: str,
) -> float:
    """Mean cycles of a wave that has the machine to itself.

    Args:
        by_address: how often each instruction ran, over all waves.
        latencies: cycles until a vector memory instruction is back, by address.
        which: "fast", "likely" or "slow" (chip.Fact).
    """
    blocks = build_blocks(instructions)
    counts = [by_address.get(instructions[block.start].address, 0) for block in blocks]
    walker = _Walker(instructions, latencies, which)
    cycles = [0.0] * len(blocks)
    ends = [_State() for _ in blocks]
    before = _likely_predecessors(blocks, counts)
    for _ in range(_ROUNDS):
        for number, block in enumerate(blocks):
            if counts[number]:
                source = before[number]
                start = ends[source] if source is not None else _State()
                cycles[number], ends[number] = walker.walk(block, start)
    return sum(count * time for count, time in zip(counts, cycles, strict=True)) / max(waves, 1)


def _likely_predecessors(blocks: Sequence[Block], counts: Sequence[int]) -> list[int | None]:
    """Of each block, the predecessor that most likely ran before it: itself, where it mostly repeats."""
    before: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for following in block.successors:
            before[following].append(number)
    chosen: list[int | None] = []
    for number, sources in enumerate(before):
        others = [source for source in sources if source != number]
        entered = sum(counts[source] for source in others)
        if number in sources and counts[number] >= 2 * entered:
            chosen.append(number)
        else:
            chosen.append(max(others, key=lambda source: counts[source], default=None))
    return chosen


class _Walker:
    def __init__(self, instructions: Sequence[Instruction], latencies: Mapping[int, float], which: str) -> None:
        self.instructions, self.latencies = instructions, latencies
        self.fact = {name: fact.at(which) for name, fact in chip.FACTS.items()}

    def walk(self, block: Block, state: _State) -> tuple[float, _State]:
        """(cycles of a block, what it leaves)."""
        state = _State(dict(state.ready), list(state.vm), list(state.lgkm))
        now = 0.0
        for item in self.instructions[block.start : block.end]:
            now = self._issue(item, now, state)
        return now, state.after(now)

    def _issue(self, item: Instruction, now: float, state: _State) -> float:
        """Issues one instruction and returns when the next may follow."""
        if item.row.kind == "wait":
            wait = Wait.read(item.operands[0].number)
            return max(now + self.fact["wave_issue"], _waited(state.vm, wait.vmcnt), _waited(state.lgkm, wait.lgkmcnt))
        written, read = split_operands(item)
        needed = [state.ready.get(register, 0.0) for operand in read for register in registers_of(operand)]
        if item.row.matrix is not None:
            needed.append(state.ready.get(_MATRIX_PIPE, 0.0))
        start = max([now, *needed])
        done = start + self._latency(item)
        kind = instruction_class(item)
        if kind == "vmem":
            state.vm.append(max([done, *state.vm[-1:]]))
        elif kind in ("lds", "smem"):
            state.lgkm.append(max([done, *state.lgkm[-1:]]))
        else:
            state.ready.update({register: done for operand in written for register in registers_of(operand)})
        if item.row.matrix is not None:
            state.ready[_MATRIX_PIPE] = start + self.fact["mfma_pass"] * item.row.matrix.passes
        slot = self.fact["trans"] if kind == "trans" else self.fact["wave_issue"] * wait_states(item)
        return start + slot

    def _latency(self, item: Instruction) -> float:
        kind = instruction_class(item)
        if item.row.matrix is not None:
            return self.fact["mfma_pass"] * item.row.matrix.passes + self.fact["mfma_latency"]
        if kind == "vmem":
            return self.latencies.get(item.address, self.fact["l2_latency"])
        if kind in ("lds", "smem"):
            return self.fact[f"{kind}_latency"]
        return self.fact["salu_latency"] if kind == "salu" else self.fact["valu_latency"]


def _waited(outstanding: list[float], most: int) -> float:
    """When at most so many operations are left; those that are back are forgotten."""
    if len(outstanding) <= most:
        return 0.0
    done = len(outstanding) - most
    time = outstanding[done - 1]
    del outstanding[:done]
    return time
