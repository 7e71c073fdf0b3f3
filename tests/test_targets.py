"""The tables of targets agree with themselves and with the rest of the compiler."""

from __future__ import annotations

import dataclasses
import re

import pytest

from spconv_compiler import targets, tile_grant, toolchain
from spconv_compiler.errors import InputError
from spconv_compiler.levels import LEVELS
from spconv_compiler.options import DTYPES
from spconv_compiler.targets import CpuTarget, GpuTarget, MmaShape, Target, get_target, target_names

TARGETS = [get_target(name) for name in target_names() if name not in ("auto", "cpu")]
GPUS = [target for target in TARGETS if isinstance(target, GpuTarget)]
CPUS = {target.name: target for target in TARGETS if isinstance(target, CpuTarget)}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_common_facts(target: Target) -> None:
    assert get_target(target.name) is target
    assert target.path[:2] == ("spconv", "stages") and set(target.path) <= set(LEVELS)
    assert len(set(target.path)) == len(target.path) and LEVELS[target.path[-1]].kernels
    assert target.dtypes and set(target.dtypes) <= set(DTYPES)
    assert target.facts()["name"] == target.name
    assert set(target.facts()) == {field.name for field in dataclasses.fields(target)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("target", GPUS, ids=lambda target: target.name)
def test_gpu_facts(target: GpuTarget) -> None:
    assert target.wave in (32, 64) and target.max_workgroup % target.wave == 0
    assert target.lds_bytes % 1024 == 0 and 2**31 <= target.buffer_limit_bytes < 2**32
    for shape in target.mma:
        inputs, outputs = shape.lane_elements(target.wave)
        assert inputs * target.wave == shape.m * shape.k and outputs * target.wave == shape.m * shape.n
        assert shape.intrinsic.startswith("rocdl.") and f"{shape.m}x{shape.n}x{shape.k}" in shape.intrinsic
        assert shape.passes > 0
    assert target.mma or target.warpgroup_dtypes
    for dtype in target.dtypes:
        if dtype in target.warpgroup_dtypes:
            continue
        preferred = target.mma_for(dtype)
        assert preferred is not None and preferred.element == dtype
        assert next(shape for shape in target.mma if shape.element == dtype) is preferred
    assert target.mma_for("i4") is None


def test_gfx950_against_published_numbers() -> None:
    """AMD's table of Instinct MI350X: 256 compute units, 160 KiB of LDS each, waves of 64 lanes."""
    target = get_target("gfx950")
    assert isinstance(target, GpuTarget)
    assert (target.wave, target.compute_units, target.lds_bytes) == (64, 256, 160 * 1024)


@pytest.mark.parametrize("target", CPUS.values(), ids=lambda target: target.name)
def test_cpu_facts(target: CpuTarget) -> None:
    wide = "avx512f" in target.requires
    assert target.lanes == (16 if wide else 8)
    assert target.bf16_dot == ("+avx512bf16" in target.llvm_features) <= ("avx512bf16" in target.requires)
    assert (target.tile_unit is not None) == ("amx-tile" in target.requires) == ("+amx-tile" in target.llvm_features)
    assert target.fma == ("fma" in target.requires)
    # A feature spelt otherwise than it is looked up would never be found, and the level never be chosen.
    assert set(target.requires) <= set(toolchain.CPU_FEATURES.values())
    registers = 32 if wide else 16
    for rows, vectors in target.tiles:
        # Accumulators, and either the vectors of B and a broadcast of A, or all broadcasts and a vector.
        assert rows * vectors + min(rows, vectors) + 1 <= registers
    assert len(set(target.tiles)) == len(target.tiles) > 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (CPUS["x86-64-v4-amx"].requires, "x86-64-v4-amx"),
        (CPUS["x86-64-v4-bf16"].requires, "x86-64-v4-bf16"),
        ((*CPUS["x86-64-v4"].requires, "amx_tile"), "x86-64-v4"),
        (CPUS["x86-64-v3"].requires, "x86-64-v3"),
        # Xeons with AMX run the bf16 dot product slower than multiply-adds.
        ((*CPUS["x86-64-v4-bf16"].requires, "amx-bf16"), "x86-64-v4"),
        # AVX-512 without its byte and word instructions is not level 4.
        ((*CPUS["x86-64-v3"].requires, "avx512f"), "x86-64-v3"),
    ],
)
def test_cpu_is_the_best_level_of_this_host(
    flags: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "host_cpu_features", lambda: frozenset(flags))
    monkeypatch.setattr(tile_grant, "tile_refusal", lambda: None)
    assert get_target("cpu").name == get_target("auto").name == expected


def test_a_processor_without_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "host_cpu_features", lambda: frozenset({"fma", "f16c", "sse2"}))
    with pytest.raises(InputError, match="this processor lacks avx2, bmi2; the cpu target needs x86-64-v3 or better"):
        get_target("cpu")


@pytest.mark.parametrize("name", ["gfx951", "", "GFX950", "x86-64-v2", "cuda"])
def test_unknown_names(name: str) -> None:
    accepted = re.escape(", ".join(target_names()))
    with pytest.raises(InputError, match=f"unknown target '{name}'; accepted: {accepted}"):
        get_target(name)


def test_names_and_order() -> None:
    assert target_names()[:2] == ["auto", "cpu"] and len(set(target_names())) == len(target_names())
    # Best first, so that the first that fits is the best.
    needs = [set(level.requires) for level in targets.LEVELS]
    assert all(better > worse for better, worse in zip(needs, needs[1:], strict=False))


@pytest.mark.parametrize("shape", [(16, 16, 2), (16, 32, 8), (4, 4, 8)])
def test_a_shape_that_does_not_divide(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="does not divide over 64 lanes"):
        MmaShape(*shape, element="bf16", intrinsic="rocdl.x", passes=4).lane_elements(64)
