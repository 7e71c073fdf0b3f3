"""A compiled layer on an NVIDIA sm_90 GPU, where there is one: every way to call it gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import spconv_compiler as sc
import spconv_compiler.pytorch as layers
from spconv_compiler import clear_caches, subm_conv3d
from spconv_compiler.errors import InputError
from spconv_compiler.runtime.cuda_device import cuda_device
from spconv_compiler.runtime.cuda_library import CudaContext, load_cuda

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an sm_90 GPU"
)

SHAPE, CHANNELS = (40, 200, 200), 64


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def driver() -> Iterator[CudaContext]:
    """Of the GPU that is tested; whether launches overlap is put back."""
    found = cuda_device(load_cuda(), 0, "sm_90a").driver
    before = found.overlaps
    yield found
    found.overlaps = before


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = layers.SubMConv3d(CHANNELS, CHANNELS, 3, bias=False)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.conv(layers.SparseConvTensor(features, indices, list(SHAPE), 1)).features
        return made


def frame(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(rows)
    cells = np.unravel_index(rng.choice(40 * 200 * 200, rows, replace=False), (1, *SHAPE))
    coords = torch.from_numpy(np.stack(cells, axis=1).astype(np.int32)).cuda()
    return torch.randn(rows, CHANNELS, device="cuda").half(), coords


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_layer_is_the_same_in_every_way(driver: CudaContext, overlaps: bool) -> None:
    """As the eager convolution on frames of any size, one after another without a wait, on two streams in turns."""
    driver.overlaps = overlaps
    model = _Layer().half().eval()
    frames = [frame(rows) for rows in (30_000, 1, 29_999, 12_345, 30_000, 128)]
    net = sc.compile(model.cpu(), tuple(tensor.cpu() for tensor in frames[-1]), target="sm_90")
    limits: dict[str, Any] = {"spatial_shape": SHAPE, "batch_size": 1}
    weight = model.conv.weight.cuda()
    driver.overlaps = False
    expected = [subm_conv3d(coords.clone(), features, weight, **limits) for features, coords in frames]
    driver.overlaps = overlaps
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    for turn in range(40):
        found = []
        with torch.cuda.stream(other if turn % 3 == 2 else torch.cuda.current_stream()):
            for features, coords in frames:
                found.append(net(features, coords))
        torch.cuda.synchronize()
        assert all(torch.equal(out, wanted) for out, wanted in zip(found, expected, strict=True))
    assert net.replay.graphs == 1
    wrong = frames[0][1].clone()
    wrong[17, 3] = 200
    with pytest.raises(InputError, match="1 coords are out of range, the first in row 17"):
        net(frames[0][0], wrong)
    assert torch.equal(net(*frames[0]), expected[0]) and net.replay.graphs == 1


def test_launches_that_overlap_change_no_bit(driver: CudaContext) -> None:
    """Fifty new maps and convolutions in a row, nothing waited for in between, beside kernels of torch."""
    features, coords = frame(30_000)
    weight = torch.randn(CHANNELS, 3, 3, 3, CHANNELS, device="cuda").half()
    driver.overlaps = False
    first = subm_conv3d(coords, features, weight, spatial_shape=SHAPE, batch_size=1)
    clear_caches()
    driver.overlaps = True
    found = []
    for _ in range(50):
        # What torch has just written is read at once, and overwritten behind the convolution.
        mine = features * 1
        found.append(subm_conv3d(coords.clone(), mine, weight, spatial_shape=SHAPE, batch_size=1))
        mine.zero_()
    torch.cuda.synchronize()
    assert all(torch.equal(out, first) for out in found)
