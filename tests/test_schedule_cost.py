"""The choice among GPU schedules: estimates move the right way, classes only, and the tool explains itself."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from spconv_compiler.passes.gpu.mma_panels import Panels
from spconv_compiler.schedules import AS_FAST, Problem, Workload, choose, estimates, explain, rejections, schedule_named
from spconv_compiler.schedules.cost import DENSITIES, SIZES, TOGETHER, Work, estimate
from spconv_compiler.schedules.output_stationary import element_bytes, packed_bytes
from spconv_compiler.targets import GpuTarget, get_target
from spconv_compiler.tools import compile as compile_tool

GFX950 = get_target("gfx950")
WIDE = Problem(27, 256, 256, "bf16")


def test_classes_cover_each_other() -> None:
    assert set(TOGETHER) == set(DENSITIES) and all(near <= far for near, far in TOGETHER.values())
    sizes = [Workload(size).rows for size in SIZES]
    assert sizes == sorted(sizes) and Workload("few", "dense").pairs(27) == 10_000 * 13.5
    assert Workload("few", "sparse").pairs(1) == 10_000 and Workload("few", "sparse").taps_together(1, 256) == 1
    between = [Workload().taps_together(27, rows) for rows in (16, 64, 100, 256)]
    assert between == sorted(between) and between[1] == pytest.approx((between[0] * between[3]) ** 0.5)


@pytest.mark.parametrize("density", DENSITIES)
def test_more_work_takes_longer(density: str) -> None:
    for narrow, wide in itertools.pairwise((16, 64, 128, 256, 512)):
        less, more = (estimates(Problem(27, c, c, "bf16"), GFX950, Workload("many", density)) for c in (narrow, wide))
        for name in less.keys() & more.keys():
            assert less[name].us < more[name].us, (name, narrow, wide)
    times = [estimates(WIDE, GFX950, Workload(size, density))["output_stationary"].us for size in SIZES]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["output_stationary", "pair_major"])
def test_what_is_counted_is_what_is_packed_and_multiplied(name: str) -> None:
    """K and columns are padded to whole loads of 64 bytes and whole slices: one step more, one pass more."""
    assert isinstance(GFX950, GpuTarget)
    for dtype, load in (("bf16", 32), ("f16", 32), ("f32", 16)):
        mma, passes = GFX950.mma_for(dtype), []
        assert mma is not None
        for c_in in (1, load, load + 1, 2 * load + 1, 3 * load, 9 * load):
            problem = Problem(27, c_in, 144, dtype)
            chosen = schedule_named(name).choose(problem, GFX950)
            panels = Panels.of(27, c_in, 144, chosen.weights.parameters)
            assert packed_bytes(problem, mma) == panels.elements * element_bytes(dtype)
            assert panels.k_runs * panels.run == -(-c_in // load) * load
            work = schedule_named(name).work(problem, GFX950, Workload())
            assert work is not None
            passes.append(work.passes)
        # Slices of five panels: ten, though 144 columns are nine.
        assert passes == pytest.approx([loads * passes[0] for loads in (1, 1, 2, 3, 3, 9)])
        workload = Workload()
        rows = workload.rows * workload.taps_together(27, 16)
        if name == "output_stationary":
            assert passes[0] == pytest.approx(rows / 16 * 10 * load / mma.k * mma.passes)


def test_estimates_follow_the_rates_of_the_target() -> None:
    assert isinstance(GFX950, GpuTarget) and GFX950.rates is not None
    work = Work(passes=2.0e6, groups=512.0, resident=2, l2_bytes=1e8, memory_bytes=1e7, chain_cycles=100.0, launches=2)
    found = estimate(work, GFX950, GFX950.rates)
    # 2 M passes of 4 cycles over 1,024 pipes at 2.2 GHz; 100 MB over 8 caches of 1,433.6 bytes a cycle.
    assert found.terms["matrix"] == pytest.approx(4 * 2.0e6 / 1024 / 2200)
    assert found.terms["L2"] == pytest.approx(1e8 / (8 * 1433.6) / 2200)
    assert found.limited_by == "L2" and found.us == pytest.approx(found.terms["L2"] + 6.0)
    # One workgroup more than places in two turns: the third turn is nearly empty.
    ragged = estimate(dataclasses.replace(work, groups=513.0), GFX950, GFX950.rates)
    assert ragged.terms["matrix"] == pytest.approx(found.terms["matrix"] * 512 / 513 * 3 / 2)


def test_the_reference_is_not_chosen_for_wide_layers_and_splitting_pays_for_few_rows() -> None:
    assert choose(WIDE, GFX950)[0].name == "output_stationary_tall"
    assert choose(Problem(27, 128, 128, "bf16"), GFX950)[0].name == "output_stationary"
    assert choose(Problem(27, 4, 32, "bf16"), GFX950)[0].name == "small_channels"
    # Few rows are dealt out in small shares; what is left to split are weights too large for those, of few columns.
    few = Workload("few", "dense")
    assert choose(Problem(27, 512, 512, "bf16"), GFX950, workload=few)[0].name == "output_stationary"
    assert choose(Problem(27, 1024, 128, "bf16"), GFX950, workload=few)[0].name == "split_taps"
    times = estimates(WIDE, GFX950)
    assert times["pairs_m16"].us > 3 * times["output_stationary"].us


def test_what_reads_less_is_taken_where_it_is_as_fast() -> None:
    """At 512 channels both take as long as their products; with rows for one turn of shares it is slower at 256."""
    wide, usual = Problem(27, 512, 512, "bf16"), Workload("many", "usual")
    times = estimates(wide, GFX950, usual)
    less, more = times["output_stationary_tall"], times["output_stationary"]
    assert less.us >= more.us and less.us <= AS_FAST * more.us and less.terms["L2"] < 0.9 * more.terms["L2"]
    assert choose(wide, GFX950, workload=usual)[0].name == "output_stationary_tall"
    few = Workload("some", "dense")
    times = estimates(WIDE, GFX950, few)
    assert times["output_stationary_tall"].us > AS_FAST * times["output_stationary"].us
    assert choose(WIDE, GFX950, workload=few)[0].name == "output_stationary"


def test_without_rates_the_first_legal_schedule_is_taken() -> None:
    assert isinstance(GFX950, GpuTarget)
    unknown = dataclasses.replace(GFX950, rates=None)
    assert estimates(WIDE, unknown) == {} and choose(WIDE, unknown)[0].name == "pairs_m16"


def test_every_schedule_is_explained() -> None:
    for problem in (WIDE, Problem(27, 4, 32, "f16"), Problem(729, 16, 16, "bf16")):
        lines = explain(problem, GFX950)
        reasons = rejections(problem, GFX950)
        for line, (name, reason) in zip(lines, reasons.items(), strict=False):
            assert line.startswith(f"{name}: ") and (reason in line if reason else " us, limited by " in line)


def test_the_tool_prints_estimates_or_reasons(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--explain", "--target", "gfx950", "--c-in", "1024", "--c-out", "128"]
    assert compile_tool.main([*arguments, "--size", "few", "--density", "dense"]) == 0
    text = capfd.readouterr().out
    assert "auto: split_taps" in text and "10,000 rows" in text and "never measured" in text
    assert "chunk_stationary: it is for processor cores" in text and "small_channels: features have 1024" in text
    assert compile_tool.main(arguments) == 0
    assert "auto: output_stationary" in capfd.readouterr().out
