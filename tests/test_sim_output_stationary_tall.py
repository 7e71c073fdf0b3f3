"""Schedule `output_stationary_tall` on the simulator: exact on whole numbers, slices of several widths."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from conv_cases import Case, make_case, voxels
from gemm_cases import check, compiled, result, run

from spconv_compiler import reference
from spconv_compiler.plan import evaluate
from spconv_compiler.schedules.deal import Cut, Deal
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import Fault

TALL = "output_stationary_tall"
# (C_in, C_out, dtype): one, three and four stages of K, slices of 6 and 5, of 5 and 4, and of 6 panels.
SHAPES = [
    (256, 256, "bf16"),
    (64, 512, "f16"),
    (96, 288, "f32"),
    (64, 200, "bf16"),
    (288, 288, "f32"),
    (192, 200, "bf16"),
    (512, 512, "bf16"),
    (128, 1000, "f32"),
]


@pytest.mark.parametrize(
    ("c_in", "c_out", "dtype"),
    [pytest.param(*one, marks=() if number < 4 else pytest.mark.slow) for number, one in enumerate(SHAPES)],
)
def test_channels(c_in: int, c_out: int, dtype: str) -> None:
    case = make_case(voxels(500, 9, seed=c_out), 3, c_in, c_out, dtype=dtype, whole=True)
    found = check(case, schedule=TALL, out_dtype="f32")
    assert [name for name, _ in found.launches if name.startswith("gemm_")][0].startswith(f"gemm_{TALL}")


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 385])
def test_rows_around_tiles(rows: int) -> None:
    check(make_case(voxels(rows, 9, seed=rows), 3, 64, 144, dtype="bf16", whole=True), schedule=TALL)


@pytest.mark.parametrize("rows", [2200, pytest.param(6300, marks=pytest.mark.slow)])
def test_large_shares_begin_anywhere_and_touch_three_blocks(rows: int) -> None:
    """Many slices leave few shares to fill the chip: of 17 tiles and more, which blocks of 16 do not begin."""
    case = make_case(voxels(rows, 20, seed=rows), 3, 64, 2048, dtype="bf16", whole=True)
    check(case, schedule=TALL, out_dtype="f32")


def test_epilogue_is_fused() -> None:
    case = make_case(voxels(400, 9, batches=2), 3, 64, 200, dtype="bf16", bias=True, whole=True)
    found = check(case, schedule=TALL, activation="relu", dilation=2)
    kernels = [name for name, _ in found.launches]
    assert not [name for name in kernels if name.startswith(("fill_rows", "apply_", "add_parts"))]


def test_any_order_of_workgroups_gives_the_same_bits_within_the_bound() -> None:
    case = make_case(voxels(400, 8, seed=5), 3, 256, 256, dtype="bf16", whole=False)
    artifact = compiled(3, 256, 256, dtype="bf16", out_dtype="f32", schedule=TALL)
    wanted = result(run(artifact, case), artifact, case)
    np.testing.assert_array_equal(result(run(artifact, case, 1), artifact, case), wanted)
    order = np.random.default_rng(0).permutation(len(case.coords))
    mixed = Case(case.coords[order], case.features[order], case.weight, None, "bf16", {})
    np.testing.assert_array_equal(result(run(artifact, mixed, 2), artifact, mixed), wanted[order])
    table = reference.kernel_map(case.coords, (3, 3, 3), 1)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, None, 1)
    assert reference.compare(wanted, exact, reference.error_bound(case.features, case.weight, table, "f32", None)).ok


def test_the_kernel_spills_nothing_and_two_waves_fit() -> None:
    for c_in, c_out, dtype in ((256, 256, "bf16"), (96, 288, "f32")):
        found = compiled(3, c_in, c_out, dtype=dtype, bias=False, out_dtype="f32", schedule=TALL).meta["kernels"]
        (facts,) = [facts for name, facts in found.items() if name.startswith(f"gemm_{TALL}")]
        assert facts["vgpr_spills"] == facts["sgpr_spills"] == facts["scratch_bytes"] == facts["agpr"] == 0
        assert facts["vgpr"] <= 256


@pytest.mark.parametrize("panels", [9, 12, 13, 16, 18, 32, 63, 64])
def test_slices_are_even_and_cover_all_panels(panels: int) -> None:
    cut = Cut(panels, 6)
    each, left = divmod(panels, cut.slices)
    widths = [each + (number < left) for number in range(cut.slices)]
    assert sum(widths) == panels and max(widths) <= 6 and set(widths) == set(cut.widths)


@pytest.mark.parametrize("tiles", [1, 4, 941, 1274, 1657, 3276, 6881, 100_000])
def test_shares_fit_their_lists_and_fill_the_chip(tiles: int) -> None:
    deal = Deal.tall(256, 8, 3, 24, 3)
    assert deal.turns == (72, 80)
    count = deal.count(tiles)
    assert -(-tiles // count) <= 24 and (count - 1) * (tiles // count) < tiles
    if tiles >= 72 * 24:
        assert 3 * count >= 0.84 * 256 * -(-3 * count // 256)
    launch = compiled(3, 256, 256, dtype="bf16", out_dtype="f32", schedule=TALL).plan.launches[-1]
    assert evaluate(launch.grid[0], {"rows": tiles * 16}) == -(-count // 8) * 8 * 3


def test_a_missing_barrier_is_noticed() -> None:
    from sim_kernels import encode

    case = make_case(voxels(400, 8), 3, 256, 256, dtype="bf16", whole=True)
    artifact = compiled(3, 256, 256, dtype="bf16", out_dtype="f32", schedule=TALL)
    kernels = dict(CodeObject(artifact.object).kernels)
    name = next(name for name in kernels if name.startswith("gemm"))
    code = kernels[name].code.replace(encode("s_barrier"), encode("s_nop 0"))
    assert code != kernels[name].code
    kernels[name] = dataclasses.replace(kernels[name], code=code)
    with pytest.raises(Fault):
        run(artifact, case, kernels=kernels)
