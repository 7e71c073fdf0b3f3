"""What waits and fences do besides registers: loads to LDS land, releases are complete (transfers.py, fences.py)."""

from __future__ import annotations

from spconv_compiler.sim.execute_vector import Run
from spconv_compiler.sim.instruction import Instruction, Wait
from spconv_compiler.sim.machine import Active, Batch
from spconv_compiler.sim.memory import Report
from spconv_compiler.sim.transfers import CAPACITY, Who


def land(active: Active, count: int) -> None:
    """Loads to LDS with at least so many younger instructions are there."""
    batch = active.batch

    def report(who: Who) -> Report:
        def fault(index: int, reason: str) -> Exception:
            return batch.fault(int(who.waves[index]), int(who.lanes[index]), f"a load to LDS lands: {reason}")

        return fault

    batch.transfers.land(batch.local, active.waves, batch.epochs, count, report)


def count_issue(run: Run) -> Run:
    """The instruction, counted among those that vmcnt counts."""

    def counted(active: Active) -> None:
        active.batch.transfers.issued[active.waves] += 1
        run(active)

    return counted


def wait(instruction: Instruction) -> Run:
    """s_waitcnt in a kernel that loads to LDS, or orders workgroups by fences."""
    count = Wait.read(instruction.operands[0].number).vmcnt

    def run(active: Active) -> None:
        land(active, count)
        batch = active.batch
        order = batch.releasing[active.waves]
        done = (order > 0) & (batch.transfers.issued[active.waves] - order >= min(count, CAPACITY))
        for wave in active.waves[done]:
            _release(batch, int(wave))

    return run


def _release(batch: Batch, wave: int) -> None:
    """What the wave wrote until now is there for others; of a workgroup of one wave, what it writes then is not."""
    batch.releasing[wave] = 0
    segment, width = int(batch.segments[wave]), batch.memory.width
    batch.memory.fences.release(segment, segment - int(batch.waves[wave]), width)
    if width == 1:
        batch.segments[wave] = batch.memory.begin_epoch(batch.groups[[wave]])[0]


def fence(instruction: Instruction) -> Run:
    """buffer_wbl2 and buffer_inv; those of less than device scope order no workgroups."""
    if "sc1" not in instruction.modifiers:
        return lambda active: None

    def release(active: Active) -> None:
        active.batch.releasing[active.waves] = active.batch.transfers.issued[active.waves]

    def acquire(active: Active) -> None:
        batch = active.batch
        batch.memory.fences.acquire(batch.groups[active.waves], batch.noted[active.waves])

    return release if instruction.row.name == "buffer_wbl2" else acquire


def note_releases(run: Run) -> Run:
    """An atomic, or a load of device scope, which may read of the last release."""

    def noted(active: Active) -> None:
        run(active)
        active.batch.noted[active.waves] = active.batch.memory.fences.clock

    return noted
