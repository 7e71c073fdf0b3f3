"""Two NVIDIA sm_90 GPUs, where there are two: each works while the other is current, on streams of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import spconv_compiler as sc
import spconv_compiler.pytorch as layers
from spconv_compiler import reference, subm_conv3d
from spconv_compiler.errors import InputError

_READY = torch.cuda.is_available() and torch.cuda.device_count() >= 2 and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not _READY, reason="needs two sm_90 GPUs")

SHAPE, CHANNELS = (24, 24, 24), 32
LIMITS: dict[str, Any] = {"spatial_shape": SHAPE, "batch_size": 2}


@pytest.fixture(autouse=True)
def first_is_current() -> Iterator[None]:
    """Whatever a call does, the program's current device stays what it was, and no work is lost."""
    torch.cuda.set_device(0)
    with torch.no_grad():
        yield
    assert torch.cuda.current_device() == 0
    for index in (0, 1):
        torch.cuda.synchronize(index)


def scattered(rows: int) -> torch.Tensor:
    cells = np.random.default_rng(rows).choice(2 * 24**3, rows, replace=False)
    return torch.from_numpy(np.stack(np.unravel_index(np.sort(cells), (2, *SHAPE)), axis=1).astype(np.int32))


def whole(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32))


def on(place: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to(place) if tensor.dtype is torch.int32 else tensor.to(place).half() for tensor in tensors]


def convolved(rows: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(coordinates, features, weight; the convolution)."""
    given = [scattered(rows), whole(rows, CHANNELS), whole(CHANNELS, 3, 3, 3, CHANNELS, seed=1)]
    expected = reference.subm_conv3d(*(tensor.numpy() for tensor in given))
    return given, torch.from_numpy(np.asarray(expected, np.float32))


def equal(out: torch.Tensor, expected: torch.Tensor, place: str) -> bool:
    return str(out.device) == place and torch.equal(out.cpu().float(), expected.float())


def test_a_convolution_on_the_other_device() -> None:
    given, expected = convolved(3000)
    for options in ({}, LIMITS):
        tensors = on("cuda:1", *given)
        for _ in range(2):
            assert equal(subm_conv3d(*tensors, out_dtype="f32", **options), expected, "cuda:1")


def test_both_devices_in_turns() -> None:
    """The same map on both: each has its own."""
    given, expected = convolved(2500)
    tensors = {place: on(place, *given) for place in ("cuda:0", "cuda:1")}
    for number in range(6):
        place = f"cuda:{number % 2}"
        with torch.cuda.device(number // 3):
            assert equal(subm_conv3d(*tensors[place], out_dtype="f32", **LIMITS), expected, place)


def test_maps_pools_and_ways_back_on_the_other_device() -> None:
    coords, features = scattered(2000), whole(2000, CHANNELS)
    weight, up = whole(64, 3, 3, 3, CHANNELS, seed=1), whole(CHANNELS, 3, 3, 3, 64, seed=2)
    found: dict[str, list[torch.Tensor]] = {}
    for place in ("cpu", "cuda:1"):
        c, f, w, u = on(place, coords, features, weight, up)
        map_ = sc.build_map(c, kernel_size=3, stride=2, padding=1, **LIMITS)
        down = sc.mapped_conv3d(f, w, map=map_, out_dtype="f32")
        again = sc.sparse_inverse_conv3d(down.clamp(-8, 8).half(), u, map=map_, out_dtype="f32")
        pooled = sc.sparse_max_pool3d(c, f, 2, stride=2, **LIMITS)
        found[place] = [torch.as_tensor(map_.out_coords), down, again, *pooled[:2]]
    for ours, expected in zip(found["cuda:1"], found["cpu"], strict=True):
        assert equal(ours, expected.cpu(), "cuda:1")


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = layers.SubMConv3d(CHANNELS, CHANNELS, 3, bias=False)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.conv(layers.SparseConvTensor(features, indices, list(SHAPE), 2)).features
        return made


class _Dense(nn.Module):
    """It makes a level, and a dense result."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.SubMConv3d(CHANNELS, CHANNELS, 3, bias=False)
        self.down = layers.SparseConv3d(CHANNELS, CHANNELS, 3, 2, padding=1, bias=False)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.first(layers.SparseConvTensor(features, indices, list(SHAPE), 2))).dense()
        return made


def compiled(model: nn.Module) -> Any:
    """A network whose weights are so small whole numbers that f16 has all sums."""
    for number, parameter in enumerate(model.parameters()):
        parameter.data = (whole(*parameter.shape, seed=number) > 1).float()
    example = (whole(64, CHANNELS).half(), scattered(64))
    return sc.compile(model.half().eval(), example, target="sm_90")


@pytest.mark.parametrize("model", [_Layer, _Dense])
def test_a_compiled_network_on_both_devices(model: type[nn.Module]) -> None:
    """Step by step, queued, and by its graphs; while one device is current and while the other is."""
    eager = model()
    net, frames = compiled(eager), [scattered(rows) for rows in (900, 1000, 950)]
    values = [whole(len(frame), CHANNELS, seed=3).clamp(-1, 1).half() for frame in frames]
    with layers.use_target("cpu"):
        expected = [eager(value, frame) for value, frame in zip(values, frames, strict=True)]
    for number in range(18):
        place, which = f"cuda:{number % 2}", number % 3
        with torch.cuda.device(number // 9):
            out = net(*on(place, values[which], frames[which]))
            assert equal(out, expected[which], place)
    assert net.replay.graphs >= 1


def test_streams_of_either_device() -> None:
    """A stream of the wrong device is another device's matter: work goes to the current stream of its own."""
    given, expected = convolved(2200)
    tensors, net = on("cuda:1", *given), compiled(_Layer())
    kept = [net(tensors[1].clamp(-1, 1), tensors[0]) for _ in range(4)]
    for stream in (torch.cuda.Stream(device=0), torch.cuda.Stream(device=1)):
        torch.cuda.synchronize(1)
        with torch.cuda.stream(stream):
            out = subm_conv3d(*tensors, out_dtype="f32", **LIMITS)
            again = net(tensors[1].clamp(-1, 1), tensors[0])
        torch.cuda.synchronize(1)
        assert equal(out, expected, "cuda:1") and torch.equal(again, kept[0])


def test_threads_with_a_device_each() -> None:
    given, expected = convolved(2600)
    wrong: list[str] = []

    def work(place: str) -> None:
        tensors = on(place, *given)
        for _ in range(20):
            # A map of its own in every turn.
            out = subm_conv3d(tensors[0].clone(), *tensors[1:], out_dtype="f32", **LIMITS)
            if not equal(out, expected, place):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(f"cuda:{number % 2}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_operands_on_two_devices_are_refused() -> None:
    given, _ = convolved(100)
    coords, features, weight = on("cuda:1", *given)
    for tensors, words in (
        ((coords, features, weight.to("cuda:0")), "weight is on GPU 0"),
        ((coords.to("cuda:0"), features, weight), "GPU"),
    ):
        with pytest.raises(InputError, match=words):
            subm_conv3d(*tensors, **LIMITS)
    net = compiled(_Layer())
    for _ in range(3):
        net(features.clamp(-1, 1), coords)
    for mixed in ((features, coords.to("cuda:0")), (features.to("cuda:0"), coords), (features.cpu(), coords)):
        with pytest.raises(InputError, match=r" is on (cuda:\d|cpu) but \w+ is on (cuda:\d|cpu); accepted: one device"):
            net(*mixed)
    # What was refused leaves nothing behind.
    assert torch.equal(net(features.clamp(-1, 1), coords), net(features.clamp(-1, 1), coords))
