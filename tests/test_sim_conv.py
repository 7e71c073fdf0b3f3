"""Whole convolutions, run from their linked code objects, against the numpy reference."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from conv_cases import Case, make_case, voxels

from spconv_compiler import reference
from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_conv
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import Fault, LaunchFault
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.native.machine import NativeMachine
from spconv_compiler.sim.run_plan import run_conv


@functools.cache
def compiled(kernel: int, c_in: int, c_out: int, key_width: int, **others: Any) -> Artifact:
    return compile_conv(kernel, c_in, c_out, key_width, target="gfx950", **{"schedule": "pairs_m16", **others})


def simulate(
    case: Case, key_width: int = 32, reverse: bool = False, engine: Any = Machine, **others: Any
) -> tuple[np.ndarray, str]:
    """(result, out_dtype)."""
    c_out, kernel, _, _, c_in = case.weight.shape
    options = {"dtype": case.dtype, "bias": case.bias is not None, **case.options, **others}
    artifact = compiled(kernel, c_in, c_out, key_width, **options)
    out = run_conv(artifact, case.coords, case.features, case.weight, case.bias, reverse=reverse, engine=engine)
    return out, artifact.meta["options"]["out_dtype"]


def check(case: Case, *, whole: bool, **others: Any) -> None:
    out, out_dtype = simulate(case, **others)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, case.bias, case.options.get("dilation", 1))
    if case.options.get("activation") == "relu":
        exact = np.maximum(exact, 0.0)
    if whole:
        np.testing.assert_array_equal(out, reference.round_to(exact, out_dtype))
        return
    table = reference.kernel_map(case.coords, case.weight.shape[1:4], case.options.get("dilation", 1))
    bound = reference.error_bound(case.features, case.weight, table, out_dtype, case.bias)
    comparison = reference.compare(out, exact, bound)
    assert comparison.ok, comparison


_WIDTHS = [(3, 16), (16, 32), (32, 64), (64, 3)]
# (rows, C_in, C_out, bits of keys, whether all numbers are whole): the width of keys is for the map, which no channels
# change; numbers that are not whole are rounded in the gemm, which does not change with the rows. Some rows only run on
# the numpy engine, which takes ten times as long; test_sim_native_conv.py compares the engines.
_CASES = [
    *[(rows, *widths, 32, True) for rows in (1, 16, 17, 200) for widths in _WIDTHS],
    *[(rows, 16, 32, 64, True) for rows in (1, 16, 17, 200)],
    *[(200, *widths, 32, False) for widths in _WIDTHS],
    (17, 64, 3, 64, False),
]


@pytest.mark.parametrize(("rows", "c_in", "c_out", "key_width", "whole"), _CASES)
def test_convolution(rows: int, c_in: int, c_out: int, key_width: int, whole: bool) -> None:
    coords = voxels(rows, 8, seed=rows) - np.array([0, 3, 5, 4], np.int32)
    case = make_case(coords, 3, c_in, c_out, dtype="bf16", whole=whole)
    engine = Machine if whole and rows in (17, 200) and key_width == 32 else NativeMachine
    check(case, whole=whole, key_width=key_width, engine=engine, out_dtype="bf16" if rows % 2 else "f32")


_OPTIONS: list[dict[str, Any]] = [
    {"dtype": "f16"},
    {"dtype": "f32", "bias": True},
    {"dtype": "bf16", "bias": True, "activation": "relu"},
    {"dtype": "f16", "bias": True, "activation": "relu", "out_dtype": "f32"},
    {"dtype": "bf16", "dilation": 2},
]


@pytest.mark.parametrize(
    ("options", "whole"),
    [*[(options, True) for options in _OPTIONS], *[(options, False) for options in _OPTIONS[1:4]]],
    ids=str,
)
def test_options(options: dict[str, Any], whole: bool) -> None:
    case = make_case(voxels(150, 6, batches=3), 3, 24, 20, whole=whole, **options)
    check(case, whole=whole, engine=Machine if whole else NativeMachine)


def test_duplicated_coordinates_read_the_lowest_row() -> None:
    coords = voxels(60, 5)
    coords = np.concatenate([coords, coords[10:30], coords[10:20]])
    check(make_case(coords, 3, 16, 32, dtype="bf16", whole=True), whole=True)


def test_five_taps_and_many_tiles() -> None:
    check(make_case(voxels(300, 8), 5, 16, 32, dtype="bf16", whole=True), whole=True)


@pytest.mark.parametrize("low", [-(2**31), 2**31 - 6])
def test_extreme_coordinates(low: int) -> None:
    coords = (voxels(60, 6).astype(np.int64) + [0, low, low, low]).astype(np.int32)
    check(make_case(coords, 3, 8, 16, dtype="bf16", whole=True), whole=True, key_width=64)


def test_order_of_workgroups_does_not_matter() -> None:
    """Whole numbers: sums are exact in any order, and no kernel may depend on which workgroup comes first."""
    check(make_case(voxels(300, 8), 3, 16, 32, dtype="bf16", whole=True), whole=True, reverse=True)


def test_bias_must_fit_the_artifact() -> None:
    case = make_case(voxels(3, 3), 3, 16, 32, dtype="bf16", whole=True)
    artifact = compiled(3, 16, 32, 32, dtype="bf16")
    with pytest.raises(LaunchFault, match="a bias is given if and only if"):
        run_conv(artifact, case.coords, case.features, case.weight, np.zeros(32, np.float32))


def patched(artifact: Artifact, kernel: str, old: str, new: str) -> Artifact:
    """The artifact with the first instruction `old` of a kernel replaced; both are assembly text of one size."""
    from sim_kernels import encode

    found = next(item for name, item in CodeObject(artifact.object).kernels.items() if name.startswith(kernel))
    before, after = encode(old), encode(new)
    assert len(before) == len(after) and found.code.count(before) >= 1
    code = found.code.replace(before, after, 1)
    return Artifact("0" * 64, {**artifact.files, "kernel.elf": artifact.object.replace(found.code, code)})


@pytest.mark.parametrize(
    ("kernel", "old", "new", "message"),
    [
        ("lookup", "v_lshlrev_b32_e32 v2, 4, v2", "v_lshlrev_b32_e32 v2, 5, v2", "out of bounds"),
        ("gemm", "v_and_b32_e32 v14, 24, v1", "s_nop 0", "the offset is undefined"),
        ("gemm", "s_mov_b32 s38, s26", "s_nop 0", "the buffer descriptor is undefined"),
        ("fill_grid", "s_addk_i32 s0, 0x3000", "s_addk_i32 s0, 0x4000", "nobody wrote|out of bounds|race"),
    ],
)
def test_broken_kernels_are_noticed(kernel: str, old: str, new: str, message: str) -> None:
    case = make_case(voxels(500, 20), 3, 16, 32, dtype="bf16", whole=True)
    broken = patched(compiled(3, 16, 32, 32, dtype="bf16"), kernel, old, new)
    with pytest.raises(Fault, match=f"{message}|output is not whole"):
        run_conv(broken, case.coords, case.features, case.weight)
