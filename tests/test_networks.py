"""nets/: the torch networks against the same definitions in plain numpy layers, their checkpoints, the tool."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_networks import PLAIN, RESIDUAL, SHAPE, UNETS, install, voxels

import spconv_compiler.pytorch as spconv
from spconv_compiler import reference
from spconv_compiler.errors import InputError
from spconv_compiler.io import get_preset
from spconv_compiler.nets import measure, plain, registry
from spconv_compiler.nets.registry import MODELS, TOLERANCES, ModelSpec, make_model
from spconv_compiler.pytorch import use_target
from spconv_compiler.reference_cross import Grid, outputs, pairs
from spconv_compiler.tools.run import main

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
TINY = [RESIDUAL, PLAIN, UNETS]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def run(spec: ModelSpec, namespace: Any, features: Any, coords: Any, dtype: Any = torch.float32, **options: Any) -> Any:
    model = make_model(spec, namespace, features.shape[1], SHAPE, **options).to(dtype)
    with torch.no_grad(), use_target("cpu"):
        return model(features.to(dtype), coords, 2)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("spec", TINY, ids=lambda spec: spec.name)
def test_networks_equal_plain_layers(spec: ModelSpec) -> None:
    features, coords = voxels()
    out, exact = run(spec, spconv, features, coords), run(spec, plain, features, coords)
    assert out.shape == exact.shape == ((250, 5) if spec is UNETS else (2, 128, 4, 4))
    # Sums of up to 27 · 8 products, layer upon layer, in f32.
    assert 0.05 < float(exact.norm()) / exact.numel() ** 0.5 < 20.0
    assert measure.relative_l2(out, exact) < 1e-5


@pytest.mark.usefixtures("tiny")
def test_a_swapped_tap_is_seen() -> None:
    features, coords = voxels()
    model = make_model(RESIDUAL, spconv, 4, SHAPE)
    weight: Any = model.get_parameter("conv3.2.conv2.weight")
    weight.copy_(weight.flip(3))
    with torch.no_grad(), use_target("cpu"):
        out = model(features, coords, 2)
    assert measure.relative_l2(out, run(RESIDUAL, plain, features, coords)) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", MODELS)
def test_whole_networks_equal_plain_layers(name: str, dtype: str) -> None:
    features, coords = voxels(200, 5)
    out = run(MODELS[name], spconv, features, coords, DTYPES[dtype])
    assert measure.relative_l2(out, run(MODELS[name], plain, features, coords)) < TOLERANCES[dtype]


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_those_of_the_networks_in_use(name: str) -> None:
    spec = MODELS[name]
    module, function = spec.builder
    # Without memory: what it takes to draw forty million parameters is not looked at.
    with torch.device("meta"):
        model = getattr(importlib.import_module(f"spconv_compiler.nets.{module}"), function)(spconv, 5, (41, 96, 96))
    layers = dict(measure.convolutions(model))
    assert len(layers) == spec.convolutions
    weights = {key: tuple(layer.get_parameter("weight").shape) for key, layer in layers.items()}
    # Names and shapes of public checkpoints of OpenPCDet and Pointcept.
    known: dict[str, dict[str, tuple[int, ...]]] = {
        "centerpoint": {
            "conv_input.0": (16, 3, 3, 3, 5),
            "conv1.1.conv2": (16, 3, 3, 3, 16),
            "conv2.0.0": (32, 3, 3, 3, 16),
            "conv4.2.conv1": (128, 3, 3, 3, 128),
            "conv_out.0": (128, 3, 1, 1, 128),
        },
        "second": {"conv1.0.0": (16, 3, 3, 3, 16), "conv4.2.0": (64, 3, 3, 3, 64), "conv_out.0": (128, 3, 1, 1, 64)},
        "spunet": {
            "conv_input.0": (32, 5, 5, 5, 5),
            "down.3.0": (256, 2, 2, 2, 128),
            "enc.3.block5.conv2": (256, 3, 3, 3, 256),
            "up.0.0": (96, 2, 2, 2, 96),
            "dec.3.block0.conv1": (256, 3, 3, 3, 384),
            "dec.0.block0.proj.0": (96, 1, 1, 1, 128),
            "final": (20, 1, 1, 1, 96),
        },
        "minkunet": {"conv_input.1.0": (32, 3, 3, 3, 32), "dec.2.block1.conv2": (128, 3, 3, 3, 128)},
    }
    assert known[name].items() <= weights.items()
    assert spec.preset and get_preset(spec.preset)


def test_grids() -> None:
    assert MODELS["centerpoint"].grid((40, 1440, 1440)) == (41, 1440, 1440)
    assert MODELS["spunet"].grid((33, 16, 1)) == (48, 16, 16)


@pytest.mark.usefixtures("tiny")
def test_parameters_depend_on_the_seed_alone() -> None:
    made = [make_model(UNETS, layers, 4, SHAPE, seed=seed) for layers, seed in ((spconv, 0), (plain, 0), (spconv, 1))]
    first, again, other = (model.state_dict() for model in made)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["final.weight"], other["final.weight"])


@pytest.mark.usefixtures("tiny")
def test_layers_are_measured() -> None:
    features, coords = voxels(batches=1)
    model = make_model(UNETS, spconv, 4, SHAPE)
    with use_target("cpu"):
        found = measure.run_model(model, features, coords, repeats=2)
    by_name = {conv.name: conv for conv in found.convs}
    assert [conv.name for conv in found.convs][:2] == ["conv_input.0", "down.0.0"] and found.convs[-1].name == "final"
    table = reference.kernel_map(coords, 5)
    assert by_name["conv_input.0"].pairs == int((table >= 0).sum())
    assert (by_name["conv_input.0"].kind, by_name["down.0.0"].kind, by_name["up.0.0"].kind) == ("subm", "down", "up")
    # Every voxel has one parent: a 2x2x2 convolution of stride 2 has as many pairs as inputs.
    assert by_name["down.0.0"].pairs == by_name["up.0.0"].pairs == by_name["up.0.0"].rows == 250
    assert by_name["final"].flops == 2 * 250 * 8 * 5
    assert min(conv.ms for conv in found.convs) > 0.0 and found.first_ms > 0.0 and found.fresh_ms > 0.0
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_distances() -> None:
    two, nan = torch.tensor([3.0, 4.0]), torch.tensor([3.0, float("nan")])
    assert measure.relative_l2(two, torch.tensor([0.0, 4.0])) == 0.75
    assert measure.relative_l2(nan, two) == measure.relative_l2(two[:1], two) == float("inf")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("section", "prefix"), [(None, ""), ("state_dict", "module."), ("model_state", "backbone_3d.")]
)
def test_checkpoints_of_frameworks_load(tmp_path: Path, section: str | None, prefix: str) -> None:
    source = make_model(RESIDUAL, plain, 4, SHAPE, seed=7).state_dict()
    tensors = {prefix + name: tensor for name, tensor in source.items() if not name.endswith("num_batches_tracked")}
    tensors["dense_head.weight"] = torch.zeros(3)
    torch.save(tensors if section is None else {section: tensors, "epoch": 3}, tmp_path / "model.pth")
    model = make_model(RESIDUAL, spconv, 4, SHAPE, weights=tmp_path / "model.pth")
    assert all(torch.equal(tensor, source[name]) for name, tensor in model.state_dict().items())


@pytest.mark.usefixtures("tiny")
def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    source = make_model(PLAIN, plain, 4, SHAPE).state_dict()
    short = {name: tensor for name, tensor in source.items() if name != "conv3.1.1.bias"}
    older = source | {"conv_out.0.weight": source["conv_out.0.weight"].permute(1, 2, 3, 4, 0)}
    cases = [
        ("text.pth", None, "cannot be read as a checkpoint"),
        ("list.pth", [1], "holds a list"),
        ("short.pth", short, "has no conv3.1.1.bias; the network needs"),
        ("older.pth", older, r"conv_out.0.weight is \[3, 1, 1, 8, 128\]; the network has \[128, 3, 1, 1, 8\]"),
    ]
    (tmp_path / "text.pth").write_text("no checkpoint")
    for name, value, message in cases:
        if value is not None:
            torch.save(value, tmp_path / name)
        with pytest.raises(InputError, match=message):
            make_model(PLAIN, spconv, 4, SHAPE, weights=tmp_path / name)
    with pytest.raises(InputError, match="unknown network 'resnet'; accepted: centerpoint, second, spunet, minkunet"):
        registry.get_model("resnet")


def scan(path: Path) -> Any:
    rng = np.random.default_rng(0)
    cloud = np.column_stack([rng.uniform(0.0, 8.0, (400, 2)), rng.uniform(-2.0, 10.0, 400), rng.uniform(0, 1, 400)])
    np.save(path, cloud.astype(np.float32))
    return cloud


@pytest.mark.usefixtures("tiny")
def test_tool_runs_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scan(tmp_path / "scan.npy")
    arguments = ["scan.npy", "--net", "second", "--voxel-size", "0.5", "--target", "cpu", "--repeats", "1"]
    assert main([*arguments, "--check"]) == 0
    printed = capsys.readouterr().out
    assert "check     relative L2 distance" in printed and "whole network" in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith("conv")]
    assert [row[0] for row in rows][:3] == ["conv_input.0", "conv1.0.0", "conv2.0.0"] and len(rows) == 13
    with np.load("scan-features.npz") as file:
        # 24 cells along z, and one more, of which the strides leave one; 16 along y and x, of which they leave two.
        assert file["out"].shape == (1, 128, 2, 2) and file["spatial_shape"].tolist() == [24, 16, 16]
        assert str(file["net"]) == "second" and len(file["coords"]) == int(rows[0][3])
    right = measure.relative_l2
    monkeypatch.setattr(measure, "relative_l2", lambda out, other: right(out + 1.0, other))
    assert main([*arguments, "--check", "--no-output"]) == 1
    assert "check failed: second:" in capsys.readouterr().err


@pytest.mark.parametrize("grid", [Grid.of(3, 1, 1), Grid.of(3, 2, 1), Grid.of((3, 1, 1), (2, 1, 1)), Grid.of(2, 2)])
def test_pairs_are_counted(grid: Grid) -> None:
    _, coords = voxels()
    fine = coords - torch.tensor([0, 3, 9, 9], dtype=torch.int32)
    coarse = np.array(outputs(fine, grid) if max(grid.stride) > 1 else fine.tolist(), np.int32)
    counted = measure.count_pairs(fine.numpy(), coarse, grid.kernel_size, grid.stride, grid.padding)
    assert counted == len(pairs(fine, coarse, grid)) >= 250
    assert measure.count_pairs(fine.numpy(), coarse[:0], grid.kernel_size, grid.stride, grid.padding) == 0
