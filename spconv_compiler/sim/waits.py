"""Static check of s_waitcnt: on no path may a register be touched while a memory instruction still has to write it.

Per register, the smallest number of younger operations of its queue on any path; a wait for n clears what has n or
more. Vector memory completes in order, and so does LDS; scalar loads do not, so that only lgkmcnt(0) clears them.
Flat instructions count in both counters, and need both at 0. The counters end at 63 and 15: issuing more waits by
itself. Loads straight to LDS have no register to watch: see transfers.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from spconv_compiler.sim.cfg import registers_of, split_operands
from spconv_compiler.sim.instruction import Instruction, Wait

# (queue, file, number) -> younger operations. The file "store" stands for LDS writes, which have no register.
State = dict[tuple[str, str, int], int]
CAPACITY = {"vm": 63, "lds": 15}
COUNTED_BY_VMCNT = ("buffer", "global", "scratch", "flat", "cache")
_QUEUE = {
    "buffer": "vm", "global": "vm", "scratch": "vm", "flat": "flat", "lds": "lds", "permute": "lds", "smem": "smem",
    "clock": "smem",
}  # fmt: skip
_COUNTER = {"vm": "vmcnt", "lds": "lgkmcnt", "smem": "lgkmcnt", "flat": "vmcnt"}
_IN_ORDER = ("vm", "lds")


def join(a: State, b: State) -> State:
    """What holds where two paths meet."""
    return {key: min(a.get(key, 99), b.get(key, 99)) for key in a.keys() | b.keys()}


def _apply(state: State, wait: Wait) -> State:
    def done(queue: str, younger: int) -> bool:
        match queue:
            case "vm":
                return younger >= wait.vmcnt
            case "lds":
                return younger >= wait.lgkmcnt
            case "flat":
                return wait.vmcnt == 0
        return wait.lgkmcnt == 0

    return {key: younger for key, younger in state.items() if not done(key[0], younger)}


def step(state: State, item: Instruction) -> tuple[State, list[str]]:
    """(the state after an instruction, what is wrong with it)."""
    if item.row.kind == "wait":
        return _apply(state, Wait.read(item.operands[0].number)), []
    problems = list(_problems(state, item))
    queue = _QUEUE.get(item.row.kind)
    vector = item.row.kind in COUNTED_BY_VMCNT and item.format != "SMEM"
    if queue is None and not vector:
        return state, problems
    state = _aged(state, "vm") if vector else dict(state)
    if queue in ("lds", "flat"):
        state = _aged(state, "lds")
    if queue is None:
        return state, problems
    written, _ = split_operands(item)
    for operand in written:
        for file, number in registers_of(operand):
            state[queue, file, number] = 0
            if queue == "flat":
                state["smem", file, number] = 0
    if item.row.kind == "lds" and item.row.access is not None and item.row.access.kind != "load":
        state[queue, "store", item.address] = 0
    return state, problems


def _aged(state: State, queue: str) -> State:
    """One more operation of a queue is under way."""
    aged = ((key, younger + (key[0] == queue)) for key, younger in state.items())
    return {key: younger for key, younger in aged if key[0] != queue or younger < CAPACITY[queue]}


def _problems(state: State, item: Instruction) -> Iterator[str]:
    if item.row.kind == "barrier":
        if any(file == "store" and queue == "lds" for queue, file, _ in state):
            yield "an LDS write is not waited for before the barrier (lgkmcnt)"
        return
    written, read = split_operands(item)
    mine = _QUEUE.get(item.row.kind)
    pending = {(file, number): queue for queue, file, number in state if file != "store"}
    for operand, verb in [*((o, "reads") for o in read), *((o, "writes") for o in written)]:
        for register in registers_of(operand):
            queue = pending.get(register)
            # A later load of the same queue into the same register comes back later.
            if queue is not None and not (verb == "writes" and queue == mine and mine in _IN_ORDER):
                yield f"{verb} {register[0]}{register[1]} before its load has come back ({_COUNTER[queue]})"
                break
