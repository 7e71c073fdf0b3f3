"""Compiled networks queued as one on the HIP shim: the same as the eager network on the CPU, to the last bit."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hip_harness import Shim
from network_cases import CHANNELS, SHAPE, Residual, exact_norm, voxels, with_integers
from test_hip_tensors import Gpu, gpu
from torch import nn

import spconv_compiler
import spconv_compiler.pytorch as spconv
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.network.replay import Replay, room_for
from spconv_compiler.pytorch import use_target
from spconv_compiler.runtime.hip import Stream
from spconv_compiler.runtime.hip_device import HipDevice
from spconv_compiler.runtime.hip_library import HipLibrary

__all__ = ["gpu"]
sc: Any = spconv_compiler
pytestmark = pytest.mark.usefixtures("shim", "without_gradients")


class Detector(nn.Module):
    """Two scales, a residual block at the coarse one, a dense result."""

    def __init__(self) -> None:
        super().__init__()
        rng = random.Random(3)
        self.first = spconv.SparseSequential(spconv.SubMConv3d(3, CHANNELS, 3, bias=False), exact_norm(rng), nn.ReLU())
        self.down = spconv.SparseConv3d(CHANNELS, CHANNELS, 3, 2, padding=1, bias=True)
        self.block = Residual(rng)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        x = self.block(self.down(self.first(spconv.SparseConvTensor(features, indices, SHAPE, 2))))
        return torch.flatten(x.dense(), 1, 2)


class Small(nn.Module):
    """Two layers, results of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spconv.SubMConv3d(3, CHANNELS, 3, bias=True)
        self.down = spconv.SparseConv3d(CHANNELS, CHANNELS, 2, 2, bias=False)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        first = self.first(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        down = self.down(first)
        return {"first": first.features, "features": down.features, "indices": down.indices}


class Layer(nn.Module):
    """One layer: only its map is left to the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = spconv.SubMConv3d(3, CHANNELS, 3, bias=True)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self.conv(spconv.SparseConvTensor(features, indices, SHAPE, 2)).features


class Unet(nn.Module):
    """Down by a convolution and by a pool, up again, features side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spconv.SubMConv3d(3, CHANNELS, 3, bias=True)
        self.down = spconv.SparseConv3d(CHANNELS, CHANNELS, 2, 2, bias=False, indice_key="down")
        self.pool = spconv.SparseMaxPool3d(3, 2, 1)
        self.up = spconv.SparseInverseConv3d(CHANNELS, CHANNELS, 2, indice_key="down", bias=False)
        self.last = spconv.SubMConv3d(2 * CHANNELS, CHANNELS, 1, bias=False)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.first(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        down = self.down(x)
        up = self.up(down)
        joined = self.last(up.replace_feature(torch.cat([up.features, x.features], dim=1)))
        pooled = self.pool(down)
        return {"features": joined.features, "pooled": pooled.features, "indices": pooled.indices}


def compiled(model: nn.Module, rows: int = 60, **options: Any) -> tuple[Any, Replay]:
    net = sc.compile(model, voxels(rows, 0), target="gfx950", **options)
    replay = net.replay
    assert isinstance(replay, Replay)
    return net, replay


def eager(model: nn.Module, frame: tuple[torch.Tensor, torch.Tensor]) -> Any:
    with use_target("cpu"):
        return model(*frame)


def call(gpu: Gpu, net: Any, frame: tuple[torch.Tensor, torch.Tensor]) -> Any:
    out = net(*(gpu.put(tensor) for tensor in frame))
    return {name: gpu.fetch(tensor) for name, tensor in out.items()} if isinstance(out, dict) else gpu.fetch(out)


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return all(torch.equal(found[name], wanted[name]) for name in wanted) and found.keys() == wanted.keys()
    return torch.equal(found, wanted)


@pytest.mark.slow
def test_a_detector_is_two_graphs(gpu: Gpu, shim: Shim) -> None:
    """Step by step, queued in places that stay, then replayed on more and on fewer voxels; the dense result too.

    Levels are one graph and what is made of them another: their numbers are known while the second still runs.
    """
    model = with_integers(Detector(), 1)
    net, replay = compiled(model)
    for count, graphs in ((90, 0), (96, 2), (90, 2), (40, 2), (1, 2)):
        frame = voxels(count, count)
        assert same(call(gpu, net, frame), eager(model, frame))
        assert replay.graphs == graphs, replay.reason
    assert replay.reason is None and replay.room is not None and replay.room[0] == 96


@pytest.mark.slow
def test_features_side_by_side_are_copied_in_the_graph(gpu: Gpu) -> None:
    model = with_integers(Unet(), 2)
    net, replay = compiled(model)
    for number, count in enumerate((40, 33, 44)):
        frame = voxels(count, count)
        assert same(call(gpu, net, frame), eager(model, frame))
        assert replay.graphs == (2 if number else 0), replay.reason


def test_a_graph_is_replayed_while_there_is_room(gpu: Gpu, shim: Shim) -> None:
    """Results have as many rows as there are voxels; room grows by doubling; streams take turns; errors pass by."""
    model = with_integers(Small(), 2)
    net, replay = compiled(model)
    for number, count in enumerate((30, 32, 20)):
        frame = voxels(count, count)
        assert same(call(gpu, net, frame), eager(model, frame))
        assert replay.graphs == (2 if number else 0), replay.reason
    assert replay.room is not None and replay.room[0] == 32
    big = voxels(50, 50)
    assert same(call(gpu, net, big), eager(model, big)) and replay.graphs == 0
    assert replay.reason == "indices has 50 voxels, and there was room for 32"
    assert replay.room[0] == 64
    with Stream(gpu.hip) as other:
        home = gpu.current
        for number, count in enumerate((50, 40, 9)):
            gpu.current = home if number % 2 else other
            frame = voxels(count, count)
            assert same(call(gpu, net, frame), eager(model, frame)) and replay.graphs == 2, replay.reason
        gpu.current = home
    features, indices = voxels(20, 1)
    indices[3, 1] = 12
    with pytest.raises(InputError, match=r"1 coords are out of range, the first in row 3"):
        call(gpu, net, (features, indices))
    assert replay.reason == "coords of indices are out of range"
    shim.fail("hipGraphLaunch", "hipErrorLaunchFailure")
    with pytest.raises(LaunchError, match="hipGraphLaunch: hipErrorLaunchFailure"):
        call(gpu, net, frame)
    assert same(call(gpu, net, frame), eager(model, frame)) and replay.graphs == 2
    assert call(gpu, net, voxels(0, 1))["features"].shape == (0, CHANNELS)
    assert replay.reason == "indices has no voxels"


def test_a_last_convolution_copies_neither_features_nor_result(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the caller's tensor, and a result stays what it is in later calls; rows of earlier frames are gone."""
    model = with_integers(Layer(), 4)
    net, replay = compiled(model, 30)
    sizes: list[int] = []
    kept: list[tuple[Any, Any]] = []
    copy = HipDevice.copy

    def noted(device: HipDevice, target: int, source: int, nbytes: int, stream: int) -> None:
        sizes.append(nbytes)
        copy(device, target, source, nbytes, stream)

    monkeypatch.setattr(HipDevice, "copy", noted)
    for number, count in enumerate((30, 32, 32, 20, 32)):
        frame = voxels(count, count + number)
        kept.append((net(*(gpu.put(tensor) for tensor in frame)), eager(model, frame)))
        assert replay.graphs == (1 if number else 0), replay.reason
    assert sizes == []
    assert all(torch.equal(gpu.fetch(found), wanted) for found, wanted in kept)


def test_more_outputs_than_there_is_room_for(gpu: Gpu) -> None:
    """Voxels that lie far apart have more outputs: what the graph has left out is computed step by step."""
    model = with_integers(Small(), 2)
    net, replay = compiled(model)
    near = torch.tensor([[0, z, y, x] for z in range(4) for y in range(4) for x in range(2)], dtype=torch.int32)
    far = near * torch.tensor([1, 3, 3, 6], dtype=torch.int32)
    features = voxels(32, 1)[0]
    for indices in (near, near, far, far):
        frame = features, indices
        assert same(call(gpu, net, frame), eager(model, frame))
        if indices is far and replay.reason is not None:
            assert replay.reason == "down has 32 voxels, and there was room for 16"
    assert replay.graphs == 2 and replay.room == (32, 32)


def test_what_has_no_graph_says_why(hip: HipLibrary) -> None:
    model, frame = with_integers(Small(), 2), voxels(20, 1)
    net, replay = compiled(model, 20)
    assert same(net(*frame), eager(model, frame))
    assert replay.reason == "the arguments lie in host memory, or not all on one GPU"
    kept, replay = compiled(model, 20, keep_maps=True)
    assert same(kept(*frame), eager(model, frame))
    assert replay.reason is not None and replay.reason.startswith("keep_maps keeps the maps of one call")
    assert sc.compile(model, frame, target="cpu").replay is None


@pytest.mark.parametrize(("rows", "room"), [(0, 16), (1, 16), (17, 32), (105_000, 106_496), (1 << 20, 1 << 20)])
def test_room_is_at_most_an_eighth_more(rows: int, room: int) -> None:
    assert room_for(rows) == room
