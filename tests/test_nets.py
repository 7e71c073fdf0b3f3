"""nets/stacks.py: parameters, feature scaling, and the runner against the reference."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from spconv_compiler import nets, reference
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.io import demo_scan, voxelize


def small_cloud(rows: int = 300, features: int = 4, seed: int = 0) -> tuple[Any, Any]:
    """Distinct coordinates in a box a quarter full, in random order, two batches; and features."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(2 * 8 * 8 * 10)[:rows]
    coords = np.stack(np.unravel_index(cells, (2, 8, 8, 10)), axis=1).astype(np.int32)
    return coords, rng.standard_normal((rows, features)).astype(np.float32)


def expected(run: nets.LayerRun, coords: Any, weight: Any = None) -> Any:
    """The reference's result of a layer on the input that the layer had."""
    weight = run.parameters.weight if weight is None else weight
    out = reference.subm_conv3d(coords, run.features, weight, run.parameters.bias, run.layer.dilation)
    return np.maximum(out, 0.0) if run.layer.activation == "relu" else out


def bound(run: nets.LayerRun, coords: Any, dtype: str) -> Any:
    table = reference.kernel_map(coords, run.layer.kernel_size, run.layer.dilation)
    return reference.error_bound(run.features, run.parameters.weight, table, dtype, run.parameters.bias)


MIXED = nets.Net(
    "mixed",
    "every field of a layer",
    (
        nets.Layer("plain", 8, bias=False, activation="none"),
        nets.Layer("long", 5, (1, 3, 5)),
        nets.Layer("spread", 6, dilation=(1, 2, 1), activation="none"),
        nets.Layer("point", 3, (1, 1, 1), bias=False),
    ),
)


@pytest.mark.parametrize(("dtype", "layers"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_every_layer_equals_the_reference(dtype: str, layers: int) -> None:
    coords, features = small_cloud()
    net = dataclasses.replace(MIXED, layers=MIXED.layers[:layers])
    runs = list(nets.run_net(net, coords, features, dtype=dtype, repeats=1))
    assert [run.layer.name for run in runs] == ["plain", "long", "spread", "point"][:layers]
    for run in runs:
        compared = reference.compare(run.out, expected(run, coords), bound(run, coords, dtype))
        assert compared.ok, (run.layer.name, compared)
        assert reference.to_numpy(run.out).any()


def test_a_wrong_weight_is_seen() -> None:
    coords, features = small_cloud()
    run = next(nets.run_net(MIXED, coords, features, repeats=1))
    swapped = run.parameters.weight.copy()
    swapped[:, 0, 0, 0], swapped[:, 2, 2, 2] = run.parameters.weight[:, 2, 2, 2], run.parameters.weight[:, 0, 0, 0]
    assert not reference.compare(run.out, expected(run, coords, swapped), bound(run, coords, "f32")).ok


def test_layers_are_chained_and_counted() -> None:
    coords, features = small_cloud(features=4)
    runs = list(nets.run_net(nets.get_net("small"), coords, features, repeats=2))
    assert [(run.c_in, run.layer.c_out) for run in runs] == [(4, 16), (16, 16), (16, 32), (32, 64)]
    assert all(after.features is before.out for before, after in zip(runs, runs[1:], strict=False))
    pairs = int((reference.kernel_map(coords) >= 0).sum())
    assert [run.pairs for run in runs] == [pairs] * 4
    assert runs[1].flops == 2 * pairs * 16 * 16
    assert runs[1].gflops == pytest.approx(runs[1].flops / (runs[1].ms * 1e-3) / 1e9)
    assert runs[0].map_ms > 0.0 and [run.map_ms for run in runs[1:]] == [0.0] * 3
    assert all(run.ms > 0.0 and run.pairs_per_row == pairs / 300 for run in runs)


def test_large_boxes_use_wide_keys() -> None:
    coords, features = small_cloud(rows=20)
    coords[0] = (0, 1_000_000, -1_000_000, 1_000_000)
    run = next(nets.run_net(MIXED, coords, features, repeats=1))
    assert run.pairs == int((reference.kernel_map(coords) >= 0).sum())
    assert reference.compare(run.out, expected(run, coords), bound(run, coords, "f32")).ok


def test_no_voxels() -> None:
    coords, features = np.zeros((0, 4), np.int32), np.zeros((0, 4), np.float32)
    runs = list(nets.run_net(nets.get_net("second-stage1"), coords, features, repeats=1))
    assert [(run.rows, run.pairs, run.pairs_per_row, run.gflops) for run in runs] == [(0, 0, 0.0, 0.0)] * 2
    assert runs[-1].out.shape == (0, 16)


def test_progress_is_told_before_each_step() -> None:
    coords, features = small_cloud(rows=30)
    told: list[str] = []
    done = []
    for run in nets.run_net(nets.get_net("second-stage1"), coords, features, repeats=1, progress=told.append):
        done.append((run.layer.name, len(told)))
    assert [step.split()[0] for step in told] == ["compiling", "running"] * 2
    assert done == [("conv_input", 2), ("conv1", 4)]


@pytest.mark.parametrize("name", nets.NETS)
def test_activations_keep_their_size(name: str) -> None:
    cloud = demo_scan(beams=8, azimuths=600)
    voxels = voxelize(cloud.xyz, cloud.features, 0.2)
    for run in nets.run_net(nets.get_net(name), voxels.coords, nets.standardize(voxels.features), repeats=1):
        size = float(np.sqrt((run.out.astype(np.float64) ** 2).mean()))
        assert 0.1 < size < 10.0, (run.layer.name, size)


def test_parameters_are_seeded() -> None:
    net = nets.get_net("small")
    first, again, other = (nets.make_parameters(net, 4, seed=seed) for seed in (0, 0, 1))
    assert [one.weight.shape[-1] for one in first] == [4, 16, 16, 32]
    assert [one.weight.shape[:-1] for one in first] == [(c_out, 3, 3, 3) for c_out in (16, 16, 32, 64)]
    for a, b, c in zip(first, again, other, strict=True):
        assert np.array_equal(a.weight, b.weight) and np.array_equal(a.bias, b.bias)  # type: ignore[arg-type]
        assert not np.array_equal(a.weight, c.weight)
    assert not np.array_equal(first[1].weight[:, :, :, :, :4], first[0].weight)
    half = nets.make_parameters(net, 4, "f16")[0].weight
    assert half.dtype == np.float16 and np.array_equal(half, first[0].weight.astype(np.float16))


def test_standardize() -> None:
    rng = np.random.default_rng(0)
    features = (rng.standard_normal((500, 4)) * (30.0, 1.0, 0.0, 80.0) + (5.0, -1.0, 2.5, 100.0)).astype(np.float32)
    features[3, 1], features[4, 3] = np.nan, np.inf
    scaled = nets.standardize(features)
    assert scaled.dtype == np.float32
    finite = np.where(np.isfinite(scaled), scaled, np.nan)
    assert np.nanmean(finite, axis=0) == pytest.approx([0.0] * 4, abs=1e-5)
    assert np.nanstd(finite, axis=0) == pytest.approx([1.0, 1.0, 0.0, 1.0], abs=1e-5)
    assert np.argwhere(~np.isfinite(scaled)).tolist() == [[3, 1], [4, 3]]
    assert np.isnan(scaled[3, 1]) and scaled[4, 3] == np.inf
    assert nets.standardize(np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(InputError, match=r"unknown net 'huge'; accepted: small, second-stage1"):
        nets.get_net("huge")
    with pytest.raises(InputError, match=r"dtype is 'f64'; accepted: bf16, f16, f32"):
        nets.to_dtype(np.zeros(1, np.float32), "f64")


def test_bad_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCONV_HIP", "nowhere/libamdhip64.so")
    coords, features = small_cloud(rows=5)
    with pytest.raises(InputError, match="repeats is 0"):
        next(nets.run_net(MIXED, coords, features, repeats=0))
    with pytest.raises(InputError, match="unknown target 'tpu'"):
        next(nets.run_net(MIXED, coords, features, target="tpu"))
    with pytest.raises(LaunchError, match="no AMD GPU"):
        next(nets.run_net(MIXED, coords, features, target="gfx950"))


def test_bf16_without_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"dtype bf16 needs torch .*install spconv_compiler\[torch\]"):
        nets.to_dtype(np.zeros((1, 1), np.float32), "bf16")


def test_f32_and_f16_need_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np; from spconv_compiler import nets\n"
        "coords, features = np.array([[0, 1, 2, 3], [0, 1, 2, 4]], np.int32), np.ones((2, 4), np.float32)\n"
        "for dtype in ('f32', 'f16'):\n"
        "    runs = nets.run_net(nets.get_net('second-stage1'), coords, features, dtype=dtype)\n"
        "    print(dtype, [run.out.shape for run in runs])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "f32 [(2, 16), (2, 16)]\nf16 [(2, 16), (2, 16)]\n"
