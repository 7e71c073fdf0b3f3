"""Bad input: the error's type, what was found and what is accepted; nothing changes, and the next call works."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import make_case, mismatch, voxels

import spconv_compiler as sc
from spconv_compiler import api
from spconv_compiler.errors import CacheWarning, InputError, LaunchError, ScheduleError, SpconvError

CASE = make_case(voxels(120, (7, 8, 9), batches=2), 3, 4, 8, whole=True, bias=True)


@pytest.fixture(autouse=True)
def empty_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))  # for the dumps of failures
    sc.clear_caches()
    yield
    sc.clear_caches()


def good() -> dict[str, Any]:
    coords, features, weight, bias = CASE.tensors()
    return {"coords": coords.clone(), "features": features.clone(), "weight": weight.clone(), "bias": bias.clone()}


def bytes_of(value: Any) -> bytes | None:
    if isinstance(value, torch.Tensor) and value.is_cpu and value.layout == torch.strided and not value.is_nested:
        return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return value.tobytes() if isinstance(value, np.ndarray) else None


def refuse(error: type[Exception], words: list[str], **changes: Any) -> None:
    """Expects the error; checks that inputs and caches stay as they were and that the next call is right."""
    sound = good()
    arguments = {**sound, **changes}
    sc.subm_conv3d(**sound)
    before = {name: bytes_of(value) for name, value in arguments.items()}
    caches = (dict(api._coords_cache._entries), dict(api._weight_cache._entries))
    maps = [dict(entry.value.maps) for entry in caches[0].values()]
    with pytest.raises(error) as caught:
        sc.subm_conv3d(**arguments)
    for word in words:
        assert word in str(caught.value)
    assert {name: bytes_of(value) for name, value in arguments.items()} == before
    assert (dict(api._coords_cache._entries), dict(api._weight_cache._entries)) == caches
    assert [dict(entry.value.maps) for entry in caches[0].values()] == maps
    assert mismatch(sc.subm_conv3d(**sound), CASE, whole=True) is None


def test_errors_are_caught_by_what_users_expect() -> None:
    with pytest.raises(ValueError):
        sc.subm_conv3d(**{**good(), "weight": torch.ones(1)})
    with pytest.raises(sc.SpconvError):
        sc.subm_conv3d(**{**good(), "weight": torch.ones(1)})


ROWS = [
    ({"features": torch.ones(119, 4)}, ["119 rows", "coords have 120"]),
    ({"features": torch.ones(0, 4)}, ["0 rows", "120"]),
    ({"features": torch.ones(120)}, ["features", "[120]", "[N, C_in]"]),
    ({"features": torch.ones(120, 4, 1)}, ["features", "[120, 4, 1]"]),
    ({"features": torch.tensor(1.0)}, ["features", "[]"]),
    ({"features": torch.ones(120, 5)}, ["5 channels", "takes 4"]),
    ({"features": torch.ones(120, 0), "weight": torch.ones(8, 3, 3, 3, 0)}, ["0 → 8", "1 to 16384"]),
    ({"weight": torch.ones(0, 3, 3, 3, 4), "bias": torch.ones(0)}, ["4 → 0", "1 to 16384"]),
    ({"coords": torch.zeros((120, 5), dtype=torch.int32)}, ["coords", "[120, 5]", "[N, 3]", "[N, 4]"]),
    ({"coords": torch.zeros(120, dtype=torch.int32)}, ["coords", "[120]"]),
]
DTYPES = [
    ({"features": torch.ones(120, 4, dtype=torch.float64)}, ["features", "float64", "float32, bfloat16, float16"]),
    ({"features": torch.ones(120, 4, dtype=torch.int32)}, ["features", "i32", "float32"]),
    ({"features": torch.ones(120, 4, dtype=torch.complex64)}, ["features", "complex64"]),
    ({"features": torch.ones(120, 4).bfloat16()}, ["features are bf16", "weight is f32", "equal"]),
    ({"weight": torch.ones(8, 3, 3, 3, 4).half()}, ["features are f32", "weight is f16"]),
    ({"bias": torch.ones(8, dtype=torch.float64)}, ["bias", "float64"]),
    ({"bias": torch.ones(8, dtype=torch.int64)}, ["bias", "i64"]),
    ({"coords": torch.zeros((120, 4), dtype=torch.uint8)}, ["coords", "uint8", "int32"]),
    ({"coords": torch.zeros((120, 4))}, ["coords", "f32", "int32"]),
    ({"coords": torch.rand(120, 4, dtype=torch.float64)}, ["coords", "float64"]),
    ({"coords": torch.zeros((120, 4), dtype=torch.bool)}, ["coords", "bool"]),
    ({"coords": CASE.coords.astype(">i4")}, ["coords", "native order"]),
    ({"out_dtype": "float32"}, ["out_dtype", "'float32'", "bf16, f16, f32"]),
    ({"out_dtype": torch.float32}, ["out_dtype", "torch.float32", "bf16, f16, f32"]),
    ({"out_dtype": ["f32"]}, ["out_dtype", "['f32']"]),
]
KINDS = [
    ({"coords": CASE.coords.tolist()}, ["coords is a list", "torch.Tensor", "numpy.ndarray"]),
    ({"features": CASE.features.tolist()}, ["features is a list"]),
    ({"weight": CASE.weight.tolist()}, ["weight is a list"]),
    ({"bias": [0.0] * 8}, ["bias is a list"]),
    ({"coords": None}, ["coords is a NoneType"]),
    ({"weight": torch.nn.Conv3d(4, 8, 3)}, ["weight is a Conv3d"]),
    ({"features": torch.ones(120, 4, device="meta")}, ["features", "device meta", "cpu"]),
    ({"coords": torch.zeros((120, 4), dtype=torch.int32, device="meta")}, ["coords", "device meta"]),
    ({"weight": torch.ones(8, 3, 3, 3, 4, device="meta")}, ["weight", "device meta"]),
    ({"bias": torch.ones(8, device="meta")}, ["bias", "device meta"]),
    ({"features": torch.ones(120, 4).to_sparse()}, ["features", "sparse", "strided"]),
    ({"features": torch.nested.nested_tensor([torch.ones(60, 4)] * 2, layout=torch.jagged)}, ["features", "nested"]),
]
KERNELS = [
    ({"weight": torch.ones(8, 2, 3, 3, 4)}, ["(2, 3, 3)", "odd"]),
    ({"weight": torch.ones(8, 4, 3, 3, 2), "weight_layout": "torch"}, ["(3, 3, 2)", "odd"]),
    ({"weight": torch.ones(8, 4, 4, 4), "weight_layout": "taps"}, ["weight", "[8, 4, 4, 4]", "3 axes"]),
    ({"weight": torch.ones(8, 3, 3, 4)}, ["weight", "[8, 3, 3, 4]", "5 axes"]),
    ({"weight": torch.ones(27, 4, 8)}, ["weight", "[27, 4, 8]"]),
    ({"weight": torch.ones(9, 4, 8), "weight_layout": "taps"}, ["9 taps", "kernel_size=(kz, ky, kx)"]),
    ({"weight_layout": "KRSC"}, ["'KRSC'", "native, torch, taps"]),
    ({"weight_layout": ["native"]}, ["layout", "['native']"]),
    ({"kernel_size": 5}, ["(3, 3, 3)", "(5, 5, 5)"]),
    ({"kernel_size": (3, 3)}, ["kernel_size", "(3, 3)", "three (z, y, x)"]),
    ({"kernel_size": 3.0}, ["kernel_size", "3.0", "whole number"]),
    ({"bias": torch.ones(7)}, ["bias", "[7]", "[8]"]),
    ({"bias": torch.ones(1, 8)}, ["bias", "[1, 8]"]),
]
ARGUMENTS = [
    ({"dilation": 0}, ["dilation", "(0, 0, 0)", "at least 1"]),
    ({"dilation": (1, 1)}, ["dilation", "(1, 1)"]),
    ({"dilation": 1.5}, ["dilation", "1.5"]),
    ({"dilation": "1"}, ["dilation", "'1'"]),
    ({"dilation": 2**30}, ["(3, 3, 3)", "reaches over 2147483648 cells", "at most 2147483647"]),
    ({"dilation": 2**62}, ["reaches over"]),
    ({"activation": "tanh"}, ["activation", "'tanh'", "none, relu, leaky_relu, gelu, silu"]),
    ({"activation": None}, ["activation", "None"]),
    ({"activation": torch.relu}, ["activation", "none, relu"]),
    ({"spatial_shape": (7, 8)}, ["spatial_shape", "(7, 8)", "three (z, y, x)"]),
    ({"spatial_shape": (7, 8, -1)}, ["spatial_shape", "(7, 8, -1)", "at least 1"]),
    ({"spatial_shape": (7, 8, 0)}, ["coords are out of range", "0 ≤ x < 0"]),
    ({"spatial_shape": (7, 8, 9.5)}, ["spatial_shape", "9.5"]),
    ({"batch_size": 0}, ["batch_size is 0", "at least 1"]),
    ({"batch_size": -1}, ["batch_size is -1"]),
    ({"batch_size": 2.0}, ["batch_size is 2.0", "whole number"]),
    ({"target": "gfx90a"}, ["unknown target", "'gfx90a'", "cpu", "gfx950"]),
    ({"target": torch.device("cpu")}, ["target", "cpu", "gfx950"]),
    ({"target": ["cpu"]}, ["target", "['cpu']"]),
    ({"schedule": "fastest"}, ["unknown schedule", "'fastest'", "auto", "chunk_stationary", "pairs_m16"]),
    ({"schedule": {}}, ["schedule", "{}"]),
]


@pytest.mark.parametrize(("changes", "words"), ROWS + DTYPES + KINDS + KERNELS + ARGUMENTS)
def test_refused_arguments(changes: dict[str, Any], words: list[str]) -> None:
    refuse(InputError, words, **changes)


@pytest.mark.parametrize("changes", [{"target": "gfx90a"}, {"schedule": "fastest"}, {"activation": "tanh"}])
def test_arguments_are_checked_without_voxels_too(changes: dict[str, Any]) -> None:
    empty = {**good(), "coords": torch.zeros((0, 4), dtype=torch.int32), "features": torch.ones(0, 4)}
    with pytest.raises(InputError):
        sc.subm_conv3d(**empty, **changes)


def moved(row: int, axis: int, value: int) -> torch.Tensor:
    coords = torch.from_numpy(CASE.coords).clone()
    coords[row, axis] = value
    return coords


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"coords": moved(5, 1, 7), "spatial_shape": (7, 8, 9)}, ["1 coords", "row 5: [", ", 7, ", "0 ≤ z < 7"]),
        ({"coords": moved(5, 3, -1), "spatial_shape": (7, 8, 9)}, ["1 coords", "row 5", "-1]", "0 ≤ x < 9"]),
        ({"spatial_shape": (7, 8, 1)}, ["coords are out of range", "0 ≤ x < 1"]),
        ({"batch_size": 1}, ["coords are out of range", "0 ≤ batch < 1"]),
        ({"coords": moved(9, 0, -3)}, ["1 coords", "row 9: [-3, ", "batch ≥ 0"]),
        ({"coords": moved(0, 0, 2**31 - 1), "batch_size": 2}, ["1 coords", "row 0: [2147483647, "]),
        ({"coords": moved(0, 2, 0).long() * 2**30}, ["outside int32", "-2147483648 to 2147483647"]),
    ],
)
def test_coordinates_out_of_range(changes: dict[str, Any], words: list[str]) -> None:
    refuse(InputError, words, **changes)


def test_coordinates_out_of_range_are_found_in_known_maps() -> None:
    """The map is in the cache; the limits of this call are checked all the same."""
    arguments = good()
    sc.subm_conv3d(**arguments)
    with pytest.raises(InputError, match="0 ≤ z < 3"):
        sc.subm_conv3d(**arguments, spatial_shape=(3, 8, 9))


def test_the_number_of_rows_outside_is_right() -> None:
    outside = int(((CASE.coords[:, 1] >= 5) | (CASE.coords[:, 3] >= 6)).sum())
    first = int(((CASE.coords[:, 1] >= 5) | (CASE.coords[:, 3] >= 6)).argmax())
    refuse(InputError, [f"{outside} coords", f"row {first}: {CASE.coords[first].tolist()}"], spatial_shape=(5, 8, 6))


def test_batch_in_the_last_column_is_noticed() -> None:
    """torchsparse's order. Its x is our batch."""
    refuse(InputError, ["0 ≤ batch < 2"], coords=torch.from_numpy(CASE.coords[:, [1, 2, 3, 0]].copy()), batch_size=2)


def test_extents_beyond_2_63() -> None:
    coords = torch.from_numpy(CASE.coords).clone()
    coords[0], coords[1] = torch.tensor([0, -(2**31), -(2**31), 0]), torch.tensor([0, 2**31 - 1, 2**31 - 1, 0])
    refuse(InputError, ["-2147483648", "2147483647", "cells", "below 2^63"], coords=coords)


@pytest.mark.parametrize("pairs", [[(3, 90)], [(0, 119)], [(7, 8), (7, 9), (50, 51)], [(118, 119), (2, 60)]])
def test_duplicates(pairs: list[tuple[int, int]]) -> None:
    coords = torch.from_numpy(CASE.coords).clone()
    for first, second in pairs:
        coords[second] = coords[first]
    rows = coords.tolist()
    repeated = [row for row in range(120) if rows.index(rows[row]) < row]
    first = min(rows.index(rows[row]) for row in repeated)
    second = next(row for row in repeated if rows.index(rows[row]) == first)
    words = [f"{len(repeated)} coords repeat", f"rows {first} and {second}", str(rows[first]), "every voxel once"]
    refuse(InputError, words, coords=coords)


def test_all_rows_equal() -> None:
    refuse(InputError, ["119 coords repeat", "rows 0 and 1"], coords=torch.zeros((120, 4), dtype=torch.int32))


def test_duplicates_with_64_bit_keys() -> None:
    coords = torch.from_numpy(CASE.coords).clone()
    coords[0, 1:] = 2**20
    coords[100] = coords[50]
    refuse(InputError, ["1 coords repeat", "rows 50 and 100"], coords=coords)


def test_equal_places_in_other_batches_are_no_duplicates() -> None:
    coords = torch.tensor([[0, 1, 2, 3], [1, 1, 2, 3]], dtype=torch.int32)
    sc.subm_conv3d(coords, torch.ones(2, 4), good()["weight"])


def test_huge_strides_are_followed() -> None:
    """Rows that lie far apart in memory that is never touched."""
    table = np.lib.stride_tricks.as_strided(np.zeros((1 << 24) * 3, np.int32), (3, 4), ((1 << 24) * 4, 4))
    table[:, 3] = [0, 1, 2]
    out = sc.subm_conv3d(torch.from_numpy(table), torch.ones(3, 4), torch.ones(8, 3, 3, 3, 4))
    assert out[:, 0].tolist() == [8.0, 12.0, 8.0]


@pytest.mark.parametrize("which", ["features", "weight", "bias"])
def test_gradients_are_refused_aloud(which: str) -> None:
    arguments = good()
    arguments[which].requires_grad_()
    out = sc.subm_conv3d(**arguments)
    assert mismatch(out, CASE, whole=True) is None
    assert out.requires_grad
    with pytest.raises(SpconvError, match=r"no backward pass.*torch.no_grad"):
        out.sum().backward()
    assert arguments[which].grad is None
    with pytest.raises(SpconvError, match="no backward pass"):
        torch.autograd.grad(sc.subm_conv3d(**arguments).sum(), arguments[which])


def test_no_gradient_is_asked_for_under_no_grad() -> None:
    arguments = good()
    arguments["weight"].requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not sc.subm_conv3d(**arguments).requires_grad
    assert not sc.subm_conv3d(**good()).requires_grad


def test_a_target_that_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCONV_HIP", "nowhere/libamdhip64.so")
    with pytest.raises(LaunchError) as caught:
        sc.subm_conv3d(**good(), target="gfx950")
    for word in ("no AMD GPU", "SPCONV_HIP", "nowhere/libamdhip64.so", "target='gfx950-sim'", "target='cpu'"):
        assert word in str(caught.value)
    assert mismatch(sc.subm_conv3d(**good()), CASE, whole=True) is None


def test_a_target_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCONV_HIP", "nowhere/libamdhip64.so")
    monkeypatch.setenv("SPCONV_TARGET", "gfx950")
    with pytest.raises(LaunchError, match="no AMD GPU"):
        sc.subm_conv3d(**good())
    monkeypatch.setenv("SPCONV_TARGET", "nonsense")
    with pytest.raises(InputError, match="unknown target 'nonsense'"):
        sc.subm_conv3d(**good())
    assert mismatch(sc.subm_conv3d(**good(), target="cpu"), CASE, whole=True) is None


def test_a_processor_that_lacks_what_a_target_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    from spconv_compiler import toolchain
    from spconv_compiler.targets.cpu import LEVELS

    monkeypatch.setattr(toolchain, "host_cpu_features", lambda: frozenset({"avx2"}))
    with pytest.raises(LaunchError, match=f"cannot run {LEVELS[-1].name} code: it lacks bmi2, f16c, fma"):
        sc.subm_conv3d(**good(), target=LEVELS[-1].name)
    with pytest.raises(InputError, match="lacks bmi2, f16c, fma"):
        sc.subm_conv3d(**good(), target="cpu")


def test_a_schedule_that_does_not_serve_the_target() -> None:
    with pytest.raises(ScheduleError) as caught:
        sc.subm_conv3d(**good(), schedule="pairs_m16")
    assert "pairs_m16" in str(caught.value)
    assert "GPU" in str(caught.value)
    assert mismatch(sc.subm_conv3d(**good()), CASE, whole=True) is None


def test_kernels_beyond_every_schedule() -> None:
    with pytest.raises(ScheduleError, match="729 taps; at most 343"):
        sc.subm_conv3d(**{**good(), "weight": torch.ones(8, 9, 9, 9, 4)})


@pytest.mark.parametrize("bad", ["SPCONV_NUM_THREADS=0", "SPCONV_NUM_THREADS=many", "SPCONV_CACHE=perhaps"])
def test_bad_variables_are_named(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = bad.split("=")
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{name}='{value}' is not accepted"):
        sc.subm_conv3d(**good())
    monkeypatch.delenv(name)
    assert mismatch(sc.subm_conv3d(**good()), CASE, whole=True) is None


def without_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls without a usable cache folder: right, and one warning."""
    monkeypatch.setenv("SPCONV_CACHE_DIR", str(folder))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            sc.clear_caches()
            assert mismatch(sc.subm_conv3d(**good()), CASE, whole=True) is None
    found = [str(item.message) for item in caught if issubclass(item.category, CacheWarning)]
    assert len(found) == 1, found
    assert str(folder) in found[0]


def test_a_cache_folder_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    without_cache(tmp_path / "file", monkeypatch)


def test_a_cache_folder_below_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    without_cache(tmp_path / "file" / "below", monkeypatch)


@pytest.mark.parametrize(
    ("file", "damage"),
    [("kernel.elf", "flip"), ("kernel.elf", "truncate"), ("plan.json", "remove"), ("manifest.json", "empty")],
)
def test_damaged_cache_entries_are_built_again(
    file: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPCONV_CACHE_DIR", str(tmp_path))
    key = sc.compile_conv(3, 4, 8, bias=True).key
    (entry,) = (path for path in tmp_path.rglob(key) if path.is_dir())
    sound, path = (entry / file).read_bytes(), entry / file
    changed: dict[str, Callable[[], object]] = {
        "flip": lambda: path.write_bytes(sound[:100] + bytes([sound[100] ^ 4]) + sound[101:]),
        "truncate": lambda: path.write_bytes(sound[: len(sound) // 2]),
        "empty": lambda: path.write_bytes(b""),
        "remove": path.unlink,
    }
    changed[damage]()
    sc.clear_caches()
    assert mismatch(sc.subm_conv3d(**good()), CASE, whole=True) is None
    (entry,) = (path for path in tmp_path.rglob(key) if path.is_dir())
    if file != "manifest.json":  # that holds the time at which it was built
        rebuilt = (entry / file).read_bytes()
        assert rebuilt == sound if file == "plan.json" else len(rebuilt) == len(sound)
