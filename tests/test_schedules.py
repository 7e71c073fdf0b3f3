"""Every schedule on every target: legal parameters, or a reason."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest

from spconv_compiler.errors import ScheduleError
from spconv_compiler.schedules import SCHEDULES, Chosen, GemmSchedule, Problem, choose, rejections, schedule_named
from spconv_compiler.targets import CpuTarget, GpuTarget, Target, get_target, target_names

TARGETS = [get_target(name) for name in target_names() if name not in ("auto", "cpu")]
GFX950 = get_target("gfx950")
V3, AMX = get_target("x86-64-v3"), get_target("x86-64-v4-amx")
CHANNELS = (1, 6, 10, 16, 24, 32, 40, 64, 128, 256, 512, 513)
PROBLEM = Problem(taps=27, c_in=64, c_out=64, dtype="bf16")


def problems(target: Target) -> list[Problem]:
    return [
        Problem(taps, c_in, c_out, dtype)
        for taps, c_in, c_out, dtype in itertools.product((1, 27, 125, 343), CHANNELS, CHANNELS, target.dtypes)
    ]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_target_has_a_schedule_for_every_dtype(target: Target) -> None:
    for problem in problems(target):
        schedule, chosen = choose(problem, target)
        assert rejections(problem, target)[schedule.name] is None
        for choice in dataclasses.astuple(chosen):
            name, parameters = choice
            assert name and all(isinstance(value, int) and value > 0 for value in parameters.values()), choice


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_map_and_pairs_do_not_depend_on_channels_or_dtype(target: Target) -> None:
    """Layers of different widths over one coordinate set share both."""
    for taps in (1, 27, 125):
        shared = {str((chosen.map, chosen.pairs)) for chosen in _chosen(target, taps)}
        assert len(shared) == 1


def _chosen(target: Target, taps: int) -> list[Chosen]:
    return [choose(problem, target)[1] for problem in problems(target) if problem.taps == taps]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_gemm_reads_what_the_weights_are_packed_as(target: Target) -> None:
    """Parameters that a gemm shares with its pairs or weights have one value."""
    for problem in problems(target):
        chosen = choose(problem, target)[1]
        gemm = dict(chosen.gemm.parameters)
        for other in (chosen.weights.parameters, chosen.pairs.parameters):
            assert all(gemm.get(name, value) == value for name, value in other.items())
        assert set(chosen.weights.parameters) <= set(gemm)


def test_tiles_of_pairs_m16_are_whole_instructions() -> None:
    assert isinstance(GFX950, GpuTarget)
    for problem in problems(GFX950):
        chosen = choose(problem, GFX950, "pairs_m16")[1].gemm.parameters
        mma = GFX950.mma_for(problem.dtype)
        assert mma is not None and chosen["tile_m"] == mma.m
        assert chosen["tile_n"] % mma.n == 0 and chosen["tile_k"] % mma.k == 0
        assert chosen["tile_n"] <= 128, "more accumulators than a wave's registers hold beside the operands"


@pytest.mark.parametrize("name", [target.name for target in TARGETS if isinstance(target, CpuTarget)])
def test_tiles_of_chunk_stationary_fit_the_registers(name: str) -> None:
    target = get_target(name)
    assert isinstance(target, CpuTarget)
    for problem in problems(target):
        chosen = choose(problem, target, "chunk_stationary")[1].gemm.parameters
        vectors, rest = divmod(chosen["tile_n"], target.lanes)
        assert rest == 0 and any(chosen["tile_m"] <= rows and vectors <= wide for rows, wide in target.tiles), (
            problem,
            chosen,
        )
        assert chosen["pair_k"] == (2 if target.bf16_dot and problem.dtype == "bf16" else 1)


@pytest.mark.parametrize("c_out", [1, 16, 17, 64])
@pytest.mark.parametrize("c_in", [1, 16, 18, 32, 33, 64, 65, 96, 97, 512])
def test_chunk_tiles_fit_the_tile_registers(c_in: int, c_out: int) -> None:
    assert isinstance(AMX, CpuTarget) and AMX.tile_unit is not None
    unit = AMX.tile_unit
    schedule, chosen = choose(Problem(27, c_in, c_out, "bf16"), AMX)
    values = chosen.gemm.parameters
    assert schedule.name == "chunk_tiles"
    assert values["tile_k"] % 2 == 0 and 2 * values["tile_k"] <= unit.row_bytes
    tall, wide, deep = values["tile_m"] // 16, values["tile_n"] // 16, -(-c_in // values["tile_k"])
    # Two tiles of rows share those of the weights; one has all of a panel's beside it.
    assert (tall * wide + tall + wide if tall == 2 else wide + deep + wide * deep) <= unit.tiles
    assert chosen.pairs == choose(Problem(27, c_in, c_out, "f32"), AMX)[1].pairs


def changed(target: Target, **facts: object) -> Target:
    return dataclasses.replace(target, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "target", "change", "reason"),
    [
        ("pairs_m16", V3, {}, "it is for waves of a GPU, and x86-64-v3 has none"),
        ("pairs_m16", GFX950, {"taps": 729}, "the kernel has 729 taps; at most 343 (7×7×7)"),
        ("pairs_m16", changed(GFX950, dtypes=("f16",)), {}, "features are bf16; gfx950 has matrix instructions here"),
        ("pairs_m16", changed(GFX950, mma=()), {}, "features are bf16; gfx950 has matrix instructions here for no "),
        ("pairs_m16", changed(GFX950, atomics=()), {}, "gfx950 has no atomic fadd of f32"),
        ("pairs_m16", changed(GFX950, atomics=(("fadd", "f32"),)), {}, "gfx950 has no atomic umin of i32"),
        ("pairs_m16", GFX950, {"c_in": 8192, "c_out": 16384, "taps": 343}, "the packed weights take"),
        ("chunk_tiles", V3, {}, "x86-64-v3 has no tile registers"),
        ("chunk_tiles", AMX, {"dtype": "f32"}, "features are f32; tiles of x86-64-v4-amx hold bf16"),
        ("chunk_stationary", GFX950, {}, "it is for processor cores, and gfx950 is a GPU"),
        ("chunk_stationary", V3, {"taps": 729}, "the kernel has 729 taps; at most 343 (7×7×7)"),
        ("chunk_stationary", changed(V3, dtypes=("f32",)), {}, "features are bf16; x86-64-v3 accepts f32"),
    ],
)
def test_reasons(schedule: str, target: Target, change: dict[str, int | str], reason: str) -> None:
    problem = dataclasses.replace(PROBLEM, **change)  # type: ignore[arg-type]
    assert (schedule_named(schedule).reject(problem, target) or "").startswith(reason)
    with pytest.raises(ScheduleError) as caught:
        choose(problem, target, schedule)
    assert [rejection.schedule for rejection in caught.value.rejections] == [schedule]


def test_an_instruction_of_other_rows_is_rejected() -> None:
    assert isinstance(GFX950, GpuTarget)
    wide = dataclasses.replace(GFX950.mma[0], m=32, n=32, k=16)
    reason = schedule_named("pairs_m16").reject(PROBLEM, dataclasses.replace(GFX950, mma=(wide,)))
    assert reason == "the matrix instruction for bf16 takes 32 rows, not 16"


def test_no_schedule_at_all_lists_every_reason() -> None:
    problem = dataclasses.replace(PROBLEM, taps=729)
    for target in TARGETS:
        with pytest.raises(ScheduleError, match="no schedule serves Problem") as caught:
            choose(problem, target)
        assert [rejection.schedule for rejection in caught.value.rejections] == [item.name for item in SCHEDULES]
        assert all(rejections(problem, target).values())


def test_names() -> None:
    names = [schedule.name for schedule in SCHEDULES]
    assert len(set(names)) == len(names) and "auto" not in names
    for schedule in SCHEDULES:
        assert schedule_named(schedule.name) is schedule
    with pytest.raises(ScheduleError, match=f"unknown schedule 'fast'; accepted: auto, {', '.join(names)}"):
        choose(PROBLEM, GFX950, "fast")


def test_the_first_legal_schedule_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str, reject: Callable[..., str | None]) -> GemmSchedule:
        schedule = GemmSchedule()
        schedule.name, schedule.reject = name, reject  # type: ignore[method-assign]
        schedule.choose = lambda problem, target: name  # type: ignore[assignment,method-assign,return-value]
        return schedule

    monkeypatch.setattr(
        "spconv_compiler.schedules.SCHEDULES",
        (named("a", lambda *_: "too small"), named("b", lambda *_: None), named("c", lambda *_: None)),
    )
    assert choose(PROBLEM, GFX950)[1] == "b"
    assert choose(PROBLEM, GFX950, "c")[1] == "c"
