"""Schedule wgmma_rows: its choice for every shape, its code, and the kernels that prepare its operands.

The kernels that only move data are run on the gfx950 simulator: at level gpu they name no target. The gemm itself runs
on a GPU only (test_sm_90.py).
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from gpu_kernel_harness import compiled, run

from spconv_compiler import compile_conv
from spconv_compiler.dialect.types import buffer_type, element_named
from spconv_compiler.errors import ScheduleError
from spconv_compiler.passes.gpu.warpgroup import MatrixTile
from spconv_compiler.passes.gpu.weight_images import Images, pack_images, widen_rows
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.ptx_text import ptx_kernels
from spconv_compiler.schedules import Problem
from spconv_compiler.schedules.wgmma_rows import GROUP_ROWS, GROUPS, WgmmaRowsSchedule
from spconv_compiler.targets import get_target

LANES = 256
CHANNELS = (1, 3, 16, 33, 64, 96, 100, 128, 256, 512)


def images_of(weight: np.ndarray, images: Images) -> np.ndarray:
    """[tap][slice][step][columns][block_k] of weight [C_out, taps, C_in], chunk by chunk where wgmma expects it."""
    shape = (images.taps, images.slices, images.steps, images.columns, images.block_k)
    wide = np.zeros((images.slices * images.columns, images.taps, images.steps * images.block_k), weight.dtype)
    wide[: images.c_out, :, : images.c_in] = weight
    out = np.zeros(shape, weight.dtype)
    repeat = 128 // (2 * images.block_k)
    for tap, part, step, row, chunk in itertools.product(*map(range, shape[:4]), range(images.block_k // 8)):
        place = chunk ^ (row // repeat % (images.block_k // 8))
        start = step * images.block_k + 8 * chunk
        values = wide[part * images.columns + row, tap, start : start + 8]
        out[tap, part, step, row, 8 * place : 8 * place + 8] = values
    return out


@pytest.mark.parametrize(
    "images",
    [Images(3, 64, 48, 48, 64), Images(2, 32, 100, 64, 32), Images(2, 19, 7, 16, 16), Images(1, 96, 32, 32, 32)],
)
def test_weights_lie_as_the_matrix_unit_reads_them(images: Images) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((images.c_out, images.taps, images.c_in)).astype(np.float16)
    kernels = compiled(lambda: [buffer_type(element_named("f16"))] * 2, LANES, pack_images(images, LANES))
    packed = np.zeros(images.elements, np.float16)
    grid = [-(-images.elements // 8 // LANES)]
    found = run(kernels, grid, LANES, [weight.ravel(), packed])[1]
    np.testing.assert_array_equal(found, images_of(weight, images).ravel())


@pytest.mark.parametrize(("c_in", "padded"), [(5, 16), (33, 48), (16, 16), (1, 16)])
def test_widened_rows_end_in_zeros(c_in: int, padded: int) -> None:
    rows = 77
    features = np.random.default_rng(1).standard_normal((rows, c_in)).astype(np.float16)
    kernels = compiled(
        lambda: [*[buffer_type(element_named("f16"))] * 2, i32()], LANES, widen_rows(c_in, padded, LANES)
    )
    wide = np.ones(rows * padded, np.float16)
    found = run(kernels, [-(-rows * padded // 8 // LANES)], LANES, [features.ravel(), wide, rows])[1]
    np.testing.assert_array_equal(found.reshape(rows, padded), np.pad(features, ((0, 0), (0, padded - c_in))))


@pytest.mark.parametrize("row_bytes", [32, 64, 128])
def test_eight_rows_of_a_tile_spread_over_all_banks(row_bytes: int) -> None:
    """A property of the layout that is read nowhere else: the places of one chunk of 8 rows differ in their bank."""
    chunks, repeat = row_bytes // 16, 128 // row_bytes
    places = [row * row_bytes + (0 ^ (row // repeat % chunks)) * 16 for row in range(8)]
    assert len({place % 128 for place in places}) == min(8, chunks * repeat)
    assert MatrixTile(row_bytes).chunks == chunks


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_shape_gets_parameters_that_fit(dtype: str) -> None:
    target, schedule = get_target("sm_90"), WgmmaRowsSchedule()
    for c_in, c_out in itertools.product(CHANNELS, CHANNELS):
        problem = Problem(27, c_in, c_out, dtype)
        assert schedule.reject(problem, target) is None
        values = schedule.choose(problem, target).gemm.parameters
        padded = -(-c_in // 16) * 16
        assert padded % values["block_k"] == 0
        assert values["columns"] <= 256
        assert -(-c_out // values["columns"]) * values["columns"] - c_out < 16 * -(-c_out // 256)
        stage = (GROUPS * GROUP_ROWS + values["columns"]) * 2 * values["block_k"]
        assert 2 <= values["stages"]
        assert values["blocks_per_unit"] * values["stages"] * stage <= 232_448


@pytest.mark.parametrize(
    ("problem", "target", "reason"),
    [
        (Problem(27, 16, 16, "f32"), "sm_90", "features are f32; warpgroups multiply bf16, f16"),
        (Problem(27, 16, 16, "bf16"), "gfx950", "gfx950 has none"),
        (Problem(27, 16, 16, "bf16"), "x86-64-v3", "x86-64-v3 has none"),
        (Problem(729, 16, 16, "bf16"), "sm_90", "729 taps; at most 343"),
    ],
)
def test_what_it_does_not_serve(problem: Problem, target: str, reason: str) -> None:
    assert reason in str(WgmmaRowsSchedule().reject(problem, get_target(target)))


def test_f32_on_sm_90_names_every_schedule() -> None:
    with pytest.raises(ScheduleError, match="warpgroups multiply bf16, f16"):
        compile_conv(3, 16, 16, dtype="f32", target="sm_90")


@pytest.mark.parametrize(
    ("channels", "options"),
    [
        ((5, 16), {}),
        ((64, 64), {"bias": True, "activation": "gelu", "residual": True}),
        ((96, 100), {"out_dtype": "f32"}),
    ],
)
def test_the_code_has_no_local_memory_and_no_calls(channels: tuple[int, int], options: dict[str, object]) -> None:
    artifact = compile_conv(3, *channels, dtype="bf16", target="sm_90", **options)  # type: ignore[arg-type]
    text = str(artifact.isa)
    assert ".local" not in text
    assert not re.search(r"\bcall\b", text)
    kernels = ptx_kernels(text)
    launched = {launch.kernel: launch for launch in artifact.plan.launches}
    assert set(kernels) == set(launched)
    for name, launch in launched.items():
        assert kernels[name].block == launch.block
        assert len(kernels[name].arguments) == len(launch.arguments)
    (gemm,) = (name for name in kernels if name.startswith("gemm_"))
    assert kernels[gemm].dynamic_lds_bytes > 48 * 1024
    assert ("widen" in " ".join(kernels)) == (channels[0] % 16 != 0)


@pytest.mark.parametrize("mapper", ["dense_grid", "z_delta"])
def test_shared_memory_begins_at_whole_runs(mapper: str) -> None:
    """Rows are staged there in runs of 16 bytes, which fault on the GPU elsewhere; the simulated layout hides it."""
    artifact = compile_conv(3, 16, 16, key_width=64, dtype="bf16", target="sm_90", mapper=mapper)
    aligned = [int(number) for number in re.findall(r"\.shared \.align (\d+)", artifact.isa)]
    assert len(aligned) >= 3 and all(number % 16 == 0 for number in aligned)
    assert "st.shared.v4.b32" in artifact.isa
