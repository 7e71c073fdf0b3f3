"""Schedule `output_stationary_tall` on the simulator: exact on whole numbers, slices of several widths."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import Case, make_case, voxels
from gemm_cases import check, compiled, result, run

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler.plan import evaluate
from spconv_compiler.schedules.deal import Cut, Deal
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import Fault

TALL = "output_stationary_tall"
# So many output channels that few rows are many: 52 pairs of panels, in 18 slices of 6 and 4 or in 13 of 8.
WIDE = 1664
FEW, MANY = Deal.tall(256, 8, 18, 24, 3), Deal.tall(256, 8, 13, 32, 3)
# (C_in, C_out, dtype): one, three and four stages of K, slices of 6 and 4, of 6, of 6, 4 and 3 panels.
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


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        (2200, 8 * 18),
        (3072, 8 * 18),
        (3073, 16 * 13),
        *(pytest.param(rows, 16 * 13, marks=pytest.mark.slow) for rows in (6300, 8192)),
    ],
)
def test_large_shares_of_both_forms_begin_anywhere_and_touch_three_blocks(rows: int, groups: int) -> None:
    """Many slices leave few shares to fill the chip: of 17 tiles and more, which blocks of 16 do not begin.

    Eight shares of at most 24 tiles, while they hold all rows, by 18 slices; or sixteen of at most 32 by 13.
    """
    case = make_case(voxels(rows, 21, seed=rows), 3, 64, WIDE, dtype="bf16", whole=True)
    found = check(case, schedule=TALL, out_dtype="f32")
    launch = compiled(3, 64, WIDE, dtype="bf16", bias=False, out_dtype="f32", schedule=TALL).plan.launches[-1]
    assert evaluate(launch.grid[0], {"rows": rows}) == groups and len(found.launches) > 1


@pytest.mark.parametrize("rows", [1, 47, 48, 49, 3056, 3071, 3088])
def test_the_form_and_the_grid_follow_the_rows(rows: int) -> None:
    """Just as many workgroups as the form has shares and slices, and none of the other form's."""
    launch = compiled(3, 64, WIDE, dtype="bf16", bias=False, out_dtype="f32", schedule=TALL).plan.launches[-1]
    tiles = -(-rows // 16)
    deal, slices = (FEW, 18) if tiles <= FEW.turn else (MANY, 13)
    assert (FEW.turn, MANY.turn) == (192, 512)
    assert evaluate(launch.grid[0], {"rows": rows}) == -(-deal.count(tiles) // 8) * 8 * slices


@pytest.mark.parametrize(("rows", "c_out"), [(400, 200), (3200, WIDE)])
def test_epilogue_is_fused(rows: int, c_out: int) -> None:
    case = make_case(voxels(rows, 17, batches=2), 3, 64, c_out, dtype="bf16", bias=True, whole=True)
    found = check(case, schedule=TALL, activation="relu", dilation=2)
    kernels = [name for name, _ in found.launches]
    assert not [name for name in kernels if name.startswith(("fill_rows", "apply_", "add_parts"))]


@pytest.mark.parametrize("rows", [pytest.param(400, marks=pytest.mark.slow), 3100])
def test_a_residual_is_added_before_relu_and_rounding_in_both_forms(rows: int) -> None:
    rng, coords = np.random.default_rng(rows), voxels(rows, 24, seed=rows)
    features, weight, bias, residual = (
        torch.from_numpy(rng.integers(-2, 3, shape).astype(np.float32))
        for shape in ((rows, 64), (WIDE, 1, 1, 3, 64), (WIDE,), (rows, WIDE))
    )
    # Too fine for bf16 beside most sums: only one rounding gives the exact result's.
    residual = residual + 0.25
    moved = [one.to(torch.bfloat16) for one in (features, weight, residual)]
    end: dict[str, Any] = {"activation": "relu", "target": "gfx950-sim", "schedule": TALL}
    out = sc.subm_conv3d(torch.from_numpy(coords), *moved[:2], bias, residual=moved[2], **end)
    exact = reference.finish(reference.subm_conv3d(coords, features, weight, bias), residual, "relu")
    assert torch.equal(out.float(), torch.from_numpy(reference.round_to(exact, "bf16")))
    assert (-(-rows // 16) > FEW.turn) == (rows == 3100) and np.count_nonzero(exact) > exact.size // 4


@pytest.mark.parametrize(("rows", "c_in", "c_out"), [(400, 256, 256), (3100, 64, WIDE)])
def test_any_order_of_workgroups_gives_the_same_bits_within_the_bound(rows: int, c_in: int, c_out: int) -> None:
    case = make_case(voxels(rows, 17, seed=5), 3, c_in, c_out, dtype="bf16", whole=False)
    artifact = compiled(3, c_in, c_out, dtype="bf16", bias=False, out_dtype="f32", schedule=TALL)
    wanted = result(run(artifact, case), artifact, case)
    np.testing.assert_array_equal(result(run(artifact, case, 1), artifact, case), wanted)
    order = np.random.default_rng(0).permutation(len(case.coords))
    mixed = Case(case.coords[order], case.features[order], case.weight, None, "bf16", {})
    np.testing.assert_array_equal(result(run(artifact, mixed, 2), artifact, mixed), wanted[order])
    table = reference.kernel_map(case.coords, (3, 3, 3), 1)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, None, 1)
    assert reference.compare(wanted, exact, reference.error_bound(case.features, case.weight, table, "f32", None)).ok


def test_the_kernel_spills_nothing_and_two_waves_fit() -> None:
    for c_in, c_out, dtype in ((256, 256, "bf16"), (96, 288, "f32"), (64, 384, "f16")):
        found = compiled(3, c_in, c_out, dtype=dtype, bias=False, out_dtype="f32", schedule=TALL).meta["kernels"]
        (facts,) = [facts for name, facts in found.items() if name.startswith(f"gemm_{TALL}")]
        assert facts["vgpr_spills"] == facts["sgpr_spills"] == facts["scratch_bytes"] == facts["agpr"] == 0
        assert facts["vgpr"] <= 256


@pytest.mark.parametrize("widest", [6, 8])
@pytest.mark.parametrize("panels", [9, 12, 13, 16, 18, 32, 63, 64])
def test_slices_are_even_but_for_lines_and_cover_all_panels(panels: int, widest: int) -> None:
    cut = Cut(panels, widest)
    assert len(cut.parts) == cut.slices == -(-panels // widest)
    assert [panel for first, width in cut.parts for panel in range(first, first + width)] == list(range(panels))
    widths = [width for _, width in cut.parts]
    assert all(first % 2 == 0 for first, _ in cut.parts) and set(widths) == set(cut.widths)
    assert max(widths) <= widest and max(widths) - min(widths) <= 2 + panels % 2


@pytest.mark.parametrize("tiles", [1, 4, 941, 1274, 1657, 1920, 1921, 3276, 6881, 100_000])
def test_shares_fit_their_lists_and_fill_the_chip(tiles: int) -> None:
    few, many = Deal.tall(256, 8, 3, 24, 3), Deal.tall(256, 8, 2, 32, 3)
    assert few.turns == (72, 80) and many.turns == (112, 120, 128) and few.turn == 1920
    deal, slices = (few, 3) if tiles <= 1920 else (many, 2)
    count = deal.count(tiles)
    assert -(-tiles // count) <= deal.most and (count - 1) * (tiles // count) < tiles
    if tiles >= 72 * 24:
        assert slices * count >= 0.84 * 256 * -(-slices * count // 256)
    launch = compiled(3, 256, 256, dtype="bf16", out_dtype="f32", schedule=TALL).plan.launches[-1]
    assert evaluate(launch.grid[0], {"rows": tiles * 16}) == -(-count // 8) * 8 * slices


def test_a_kernel_of_too_many_loops_has_one_form() -> None:
    """A padded slice, or slices of four widths in both forms."""
    for c_out, forms in ((256, "3or4"), (250, "3"), (320, "3"), (512, "3or4")):
        (name,) = [one.kernel for one in compiled(3, 64, c_out, schedule=TALL, dtype="bf16").plan.launches][-1:]
        assert f"_w8x1x{forms}_" in name


@pytest.mark.parametrize(("rows", "c_in", "c_out"), [(400, 256, 256), (3100, 64, WIDE)])
def test_a_missing_barrier_is_noticed(rows: int, c_in: int, c_out: int) -> None:
    from sim_kernels import encode

    case = make_case(voxels(rows, 17), 3, c_in, c_out, dtype="bf16", whole=True)
    artifact = compiled(3, c_in, c_out, dtype="bf16", bias=False, out_dtype="f32", schedule=TALL)
    kernels = dict(CodeObject(artifact.object).kernels)
    name = next(name for name in kernels if name.startswith("gemm"))
    code = kernels[name].code.replace(encode("s_barrier"), encode("s_nop 0"))
    assert code != kernels[name].code
    kernels[name] = dataclasses.replace(kernels[name], code=code)
    with pytest.raises(Fault):
        run(artifact, case, kernels=kernels)
