"""Weakens what keeps a kernel correct, one place at a time: the checks must notice every change that matters.

    python -m spconv_compiler.sim.mutation                 every kernel the project emits: waits, no-ops, barriers
    python -m spconv_compiler.sim.mutation kernel.elf …    waits and no-ops of any code object

prints the share that is caught, and every mutant that is not with the reason why nothing depends on it. Waits and
no-ops are judged by the static checks, on all paths; a kernel without one of its barriers is run, and so is one with a
weaker wait where waits are for more than registers: loads straight to LDS, and fences.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spconv_compiler.artifact import Artifact
from spconv_compiler.sim.cfg import build_blocks
from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.errors import Fault, ObjectError
from spconv_compiler.sim.instruction import Instruction, Operand, Wait
from spconv_compiler.sim.interpreter import is_counted
from spconv_compiler.sim.mutation_reasons import barrier_reason, reason
from spconv_compiler.sim.static_checks import Baseline

_S_NOP = bytes.fromhex("000080bf")
# Kernel size, C_in, C_out, bits of keys, whether there is a bias, schedule.
_SHAPES: tuple[tuple[int | tuple[int, int, int], int, int, int, bool, str], ...] = (
    (3, 16, 32, 32, False, "pairs_m16"),
    (3, 64, 64, 64, True, "pairs_m16"),
    (3, 128, 128, 32, False, "pairs_m16"),
    (5, 3, 20, 32, False, "pairs_m16"),
    (3, 64, 96, 32, True, "output_stationary"),
    # Rows end within a stage: the place in the loop's body tells the last one, or a branch.
    (3, 96, 48, 32, False, "output_stationary"),
    (3, 288, 64, 32, False, "output_stationary"),
    # Rows of features are no whole runs of 16 bytes, and the taps are more than a wave has lanes.
    (5, 18, 20, 32, False, "output_stationary"),
    (3, 40, 24, 32, False, "split_taps"),
    # One loop for slices of six panels and one for those of three; rows of a step asked for once for two items.
    (3, 128, 144, 32, True, "output_stationary_tall"),
    # Loops for few rows, with slices of six and of four panels, and another form for more rows than one turn has.
    ((1, 3, 3), 64, 1664, 32, False, "output_stationary_tall"),
    # One or two stages of K, all in the body of the loop over tiles; a loop over seven or fourteen, and three panels.
    (3, 64, 96, 32, True, "pair_major"),
    (3, 448, 48, 32, False, "pair_major"),
    (3, 5, 32, 32, True, "small_channels"),
)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A kernel whose instruction number `index` is weaker: what was done to it, and all its instructions."""

    index: int
    change: str
    instructions: tuple[Instruction, ...]
    whole: Baseline

    def caught(self) -> bool:
        """Whether the static checks find something wrong."""
        return self.whole.finds(self.index, self.instructions)


def wait_mutants(instructions: Sequence[Instruction]) -> Iterator[Mutant]:
    """Every counter of every s_waitcnt dropped, and waiting for one operation less; every s_nop one state shorter."""
    whole = Baseline(instructions)
    for index, item in enumerate(instructions):
        for change, operand in _weaker(item):
            weaker = dataclasses.replace(item, operands=(operand,))
            yield Mutant(index, change, (*instructions[:index], weaker, *instructions[index + 1 :]), whole)


def _weaker(item: Instruction) -> Iterator[tuple[str, Operand]]:
    if item.row.name == "s_nop":
        # One state shorter than s_nop 0 is no instruction at all: -1 stands for that.
        yield "s_nop shorter by one", Operand("k16", item.operands[0].number - 1)
    if item.row.kind != "wait":
        return
    wait = Wait.read(item.operands[0].number)
    for name, count, nothing in zip(
        ("vmcnt", "expcnt", "lgkmcnt"), dataclasses.astuple(wait), Wait.NOTHING, strict=True
    ):
        if count != nothing:
            yield f"{name} dropped", _encode(dataclasses.replace(wait, **{name: nothing}))
            yield f"{name} raised by one", _encode(dataclasses.replace(wait, **{name: count + 1}))


def _encode(wait: Wait) -> Operand:
    return Operand("wait", wait.vmcnt & 15 | wait.vmcnt >> 4 << 14 | wait.expcnt << 4 | wait.lgkmcnt << 8)


def unreachable(instructions: Sequence[Instruction]) -> set[int]:
    """Numbers of the instructions that no path reaches: padding behind a jump."""
    blocks = build_blocks(instructions)
    seen, waiting = {0}, [0]
    while waiting:
        new = set(blocks[waiting.pop()].successors) - seen
        seen |= new
        waiting += new
    return {
        index for number, block in enumerate(blocks) if number not in seen for index in range(block.start, block.end)
    }


def report(code: bytes) -> Iterator[str]:
    """Lines that say, for every kernel of a code object, how many wait mutants are caught and which are not."""
    for kernel in CodeObject(code).kernels.values():
        found = wait_report(kernel)
        yield f"{kernel.name}: {found.caught} of {found.total} caught"
        yield from found.missed


@dataclasses.dataclass
class Found:
    """What became of some mutants.

    Attributes:
        total: how many there are. caught: by a check or a run. dead: in code that no path reaches. same: not caught,
            and shown to change nothing. missed: lines on those that are not caught, with the reason.
    """

    total: int = 0
    caught: int = 0
    dead: int = 0
    same: int = 0
    missed: list[str] = dataclasses.field(default_factory=list)


# Raises a Fault if a kernel, by name, does what it must not do in a run.
Run = Callable[[Mapping[str, Kernel]], Any]


def wait_report(kernel: Kernel, run: Run | None = None) -> Found:
    """The mutants of a kernel's waits and no-ops.

    run: for waits that the static checks cannot judge: those for vector memory, where they are for more than registers.
    """
    instructions = decode(kernel.code, kernel.address)
    dead, found = unreachable(instructions), Found()
    watched = any(is_counted(item) for item in instructions)
    for mutant in wait_mutants(instructions):
        found.total += 1
        judged = watched and mutant.change.startswith("vmcnt")
        if mutant.caught() or judged and run is not None and _faults(kernel, mutant, run):
            found.caught += 1
        else:
            item = instructions[mutant.index]
            why = "no path leads here"
            if mutant.index in dead:
                found.dead += 1
            else:
                why = reason(instructions, mutant.index, mutant.change, mutant.instructions)
                found.same += bool(why)
            found.missed.append(f"  0x{item.address:x}: {item}: {mutant.change}: {why or 'no rule needs it'}")
    return found


def _faults(kernel: Kernel, mutant: Mutant, run: Run) -> bool:
    """Whether a run finds a weaker wait."""
    item = mutant.instructions[mutant.index]
    at, bits = item.address - kernel.address, item.operands[0].number
    code = kernel.code[:at] + bits.to_bytes(2, "little") + kernel.code[at + 2 :]
    try:
        run({kernel.name: dataclasses.replace(kernel, code=code)})
    except Fault:
        return True
    return False


def without_barrier(kernel: Kernel, item: Instruction) -> Kernel:
    """The kernel with one s_barrier turned into s_nop 0, which is as long."""
    at = item.address - kernel.address
    return dataclasses.replace(kernel, code=kernel.code[:at] + _S_NOP + kernel.code[at + len(_S_NOP) :])


def barrier_report(artifact: Artifact, coords: Any, features: Any, weight: Any, bias: Any = None) -> Found:
    """Runs a convolution of whole numbers once for each barrier of its kernels, without that barrier."""
    return barriers_of(artifact, _runner(artifact, [(coords, features)], weight, bias))


def _runner(artifact: Artifact, frames: Sequence[tuple[Any, Any]], weight: Any, bias: Any = None) -> Run:
    """Runs a convolution of whole numbers with other kernels in place of some; another result is a Fault too.

    frames: (coordinates, features): one after another.
    """
    from spconv_compiler.sim.native.machine import NativeMachine
    from spconv_compiler.sim.run_plan import run_conv

    own = CodeObject(artifact.object).kernels

    def result(frame: int, kernels: Mapping[str, Kernel]) -> Any:
        return run_conv(artifact, *frames[frame], weight, bias, kernels=kernels, engine=NativeMachine)

    @functools.cache
    def wanted(frame: int) -> Any:
        return result(frame, own)

    def run(changed: Mapping[str, Kernel]) -> None:
        for frame in range(len(frames)):
            if not (result(frame, {**own, **changed}) == wanted(frame)).all():
                raise Fault("the result is another one")

    return run


def barriers_of(artifact: Artifact, run: Run) -> Found:
    """Calls run, which raises a Fault if something is wrong, with each kernel that has a barrier, without that one."""
    kernels, found = CodeObject(artifact.object).kernels, Found()
    for name, kernel in kernels.items():
        instructions = decode(kernel.code, kernel.address)
        for index, item in enumerate(instructions):
            if item.row.kind != "barrier":
                continue
            found.total += 1
            try:
                run({name: without_barrier(kernel, item)})
            except Fault:
                found.caught += 1
            else:
                why = barrier_reason(instructions, index)
                found.same += bool(why)
                found.missed.append(f"  {name} 0x{item.address:x}: s_barrier dropped: {why or 'no run needs it'}")
    return found


def _convolutions() -> Iterator[tuple[str, Artifact, Run]]:
    """(name, artifact, how to run it) of ops that take every kernel the project emits."""
    import numpy as np

    from spconv_compiler.compiler import compile_conv

    rng = np.random.default_rng(0)
    cube = _voxels(rng, (20, 20, 20), 2500)
    # Blocks of rows that miss taps, too: there a step's place in its list is not its tap.
    far = _voxels(rng, (60, 60, 60), 700) + np.array([0, 30, 0, 0], np.int32)
    frames: dict[Any, list[Any]] = {3: [cube], 5: [np.concatenate([cube, far])]}
    frames[1, 3, 3] = [_voxels(rng, (20, 20, 20), rows) for rows in (400, 3100)]

    def whole(*shape: int) -> Any:
        return rng.integers(-2, 3, shape).astype(np.float32)

    for dtype in ("bf16", "f16", "f32"):
        for kernel, c_in, c_out, key_width, bias, schedule in _SHAPES:
            artifact = compile_conv(
                kernel, c_in, c_out, key_width, dtype=dtype, bias=bias, activation="relu" if bias else "none",
                target="gfx950", schedule=schedule,
            )  # fmt: skip
            given = [(coords, whole(len(coords), c_in)) for coords in frames[kernel]]
            weight = whole(c_out, *((kernel,) * 3 if isinstance(kernel, int) else kernel), c_in)
            biases = whole(c_out) if bias else None
            size = f"{kernel}^3" if isinstance(kernel, int) else "×".join(map(str, kernel))
            name = f"{dtype} {size} {c_in} → {c_out}, {key_width}-bit keys, {schedule}"
            yield name, artifact, _runner(artifact, given, weight, biases)
    # The table by tiles, and by rows.
    for key_width, schedule in itertools.product((32, 64), ("pairs_m16", "output_stationary")):
        artifact = compile_conv(
            3, 16, 32, key_width, dtype="bf16", target="gfx950", schedule=schedule, mapper="z_delta"
        )
        features, weight = np.ones((len(cube), 16), np.float32), np.ones((32, 3, 3, 3, 16), np.float32)
        name = f"map by search, {key_width}-bit keys, {schedule}"
        yield name, artifact, _runner(artifact, [(cube, features)], weight)
    from spconv_compiler.sim.mutation_cross import cross_ops
    from spconv_compiler.sim.mutation_frames import frame_ops
    from spconv_compiler.sim.mutation_levels import level_ops

    yield from cross_ops()
    yield from level_ops()
    yield from frame_ops()


def _voxels(rng: Any, shape: tuple[int, int, int], count: int) -> Any:
    import numpy as np

    cells = rng.choice(int(np.prod(shape)), count, replace=False)
    return np.stack([np.zeros_like(cells), *np.unravel_index(cells, shape)], axis=1).astype(np.int32)


def emitted_report() -> Iterator[str]:
    """The report of every kernel the project emits, each distinct kernel once."""
    waits, barriers, seen = Found(), Found(), set[tuple[str, bytes]]()
    for name, artifact, run in _convolutions():
        yield f"{name}"
        fresh = False
        for kernel in CodeObject(artifact.object).kernels.values():
            if (kernel.name, kernel.code) in seen:
                continue
            seen.add((kernel.name, kernel.code))
            fresh |= any(item.row.kind == "barrier" for item in decode(kernel.code, kernel.address))
            found = wait_report(kernel, run)
            yield f"  {kernel.name}: {found.caught} of {found.total} caught"
            yield from (f"  {line}" for line in found.missed)
            _add(waits, found)
        if fresh:
            found = barriers_of(artifact, run)
            yield f"  barriers: {found.caught} of {found.total} caught"
            yield from (f"  {line}" for line in found.missed)
            _add(barriers, found)
    yield (
        f"{len(seen)} kernels, waits and no-ops: {waits.caught} of {waits.total - waits.dead - waits.same} mutants "
        f"caught; {waits.dead} more are padding that no path reaches, {waits.same} change nothing, as shown"
    )
    yield (
        f"barriers: {barriers.caught} of {barriers.total - barriers.same} mutants caught; {barriers.same} more change "
        "nothing, as shown"
    )


def _add(total: Found, part: Found) -> None:
    total.total += part.total
    total.caught += part.caught
    total.dead += part.dead
    total.same += part.same
    total.missed += part.missed


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report of code objects, or that of the project's own kernels, and returns the exit code."""
    from spconv_compiler.tools.console import guarded

    tool = "spconv_compiler.sim.mutation"
    parser = argparse.ArgumentParser(prog=f"python -m {tool}", description="Says which weakened kernels are noticed.")
    parser.add_argument("file", nargs="*", help="a code object (default: every kernel the project emits; minutes)")
    return guarded(tool, lambda: _print(parser.parse_args(argv).file))


def _print(paths: Sequence[str]) -> int:
    for line in itertools.chain.from_iterable(map(_of_file, paths)) if paths else emitted_report():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


def _of_file(path: str) -> Iterator[str]:
    try:
        yield from report(pathlib.Path(path).read_bytes())
    except ObjectError as error:
        raise ObjectError(f"{path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
