"""Static check of s_waitcnt: on no path may a register be touched while a memory instruction still has to write it.

Per register, the smallest number of younger operations of its queue on any path; a wait for n clears what has n or
more. Vector memory completes in order, and so does LDS; scalar loads do not, so that only lgkmcnt(0) clears them.
The counters end at 63 and 15: issuing more waits by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from spconv_compiler.sim.cfg import registers_of, split_operands
from spconv_compiler.sim.instruction import Instruction, Wait

# (queue, file, number) -> younger operations. The file "store" stands for LDS writes, which have no register.
State = dict[tuple[str, str, int], int]
CAPACITY = {"vm": 63, "lds": 15}
_QUEUE = {"buffer": "vm", "global": "vm", "lds": "lds", "permute": "lds", "smem": "smem"}
_COUNTER = {"vm": "vmcnt", "lds": "lgkmcnt", "smem": "lgkmcnt"}


def join(a: State, b: State) -> State:
    """What holds where two paths meet."""
    return {key: min(a.get(key, 99), b.get(key, 99)) for key in a.keys() | b.keys()}


def _apply(state: State, wait: Wait) -> State:
    def done(queue: str, younger: int) -> bool:
        if queue == "vm":
            return younger >= wait.vmcnt
        return younger >= wait.lgkmcnt if queue == "lds" else wait.lgkmcnt == 0

    return {key: younger for key, younger in state.items() if not done(key[0], younger)}


def step(state: State, item: Instruction) -> tuple[State, list[str]]:
    """(the state after an instruction, what is wrong with it)."""
    if item.row.kind == "wait":
        return _apply(state, Wait.read(item.operands[0].number)), []
    problems = list(_problems(state, item))
    queue = _QUEUE.get(item.row.kind)
    if queue is None:
        return state, problems
    if queue != "smem":
        limit = CAPACITY[queue]
        aged = ((key, younger + (key[0] == queue)) for key, younger in state.items())
        state = {key: younger for key, younger in aged if key[0] != queue or younger < limit}
    else:
        state = dict(state)
    written, _ = split_operands(item)
    for operand in written:
        for file, number in registers_of(operand):
            state[queue, file, number] = 0
    if item.row.kind == "lds" and not written:
        state[queue, "store", item.address] = 0
    return state, problems


def _problems(state: State, item: Instruction) -> Iterator[str]:
    if item.row.kind == "barrier":
        if any(file == "store" for _, file, _ in state):
            yield "an LDS write is not waited for before the barrier (lgkmcnt)"
        return
    written, read = split_operands(item)
    mine = _QUEUE.get(item.row.kind)
    pending = {(file, number): queue for queue, file, number in state if file != "store"}
    for operand, verb in [*((o, "reads") for o in read), *((o, "writes") for o in written)]:
        for register in registers_of(operand):
            queue = pending.get(register)
            # A later load of the same queue into the same register comes back later.
            if queue is not None and not (verb == "writes" and queue == mine and mine != "smem"):
                yield f"{verb} {register[0]}{register[1]} before its load has come back ({_COUNTER[queue]})"
                break
