"""Threads that meet at coordinates, maps and networks that nobody has used yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import spconv_compiler as sc

torch = pytest.importorskip("torch")
spconv = pytest.importorskip("spconv_compiler.pytorch")

ROUNDS, THREADS, SIDE, CHANNELS = 40, 4, 12, 16


def coordinates(seed: int) -> Any:
    """Some 300 voxels, int32 [N, 4], in random order."""
    places = np.random.default_rng(seed).permutation(SIDE**3)[:300]
    z, y, x = np.unravel_index(places, (SIDE,) * 3)
    return torch.from_numpy(np.stack([0 * z, z, y, x], axis=1).astype(np.int32))


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What all of them give, begun at one moment in threads of their own."""
    found: list[Any] = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def one(number: int) -> None:
        gate.wait()
        try:
            found[number] = calls[number]()
        except Exception as error:  # shown by the comparison
            found[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_map_s_first_use_is_in_several_threads() -> None:
    """Forward, back and its list of pairs at once: the sorted sets of one are what another would build from."""
    weight = torch.randn(CHANNELS, 3, 3, 3, CHANNELS)
    for seed in range(ROUNDS):
        coords = coordinates(seed)
        features = torch.randn(len(coords), CHANNELS)

        def calls(map_: Any, features: Any = features) -> list[Callable[[], Any]]:
            coarse = torch.ones(map_.out_rows, CHANNELS)
            return [
                lambda: sc.mapped_conv3d(features, weight, map=map_),
                lambda: sc.mapped_conv3d(features, weight, map=map_),
                lambda: sc.sparse_inverse_conv3d(coarse, weight, map=map_),
                lambda: torch.from_numpy(np.stack(map_.pairs())),
            ]

        shared, alone = (sc.build_map(each, 3, stride=2, padding=1) for each in (coords, coords.clone()))
        for found, call in zip(together(calls(shared)), calls(alone), strict=True):
            assert torch.equal(found, call()), (seed, found)


class Layers(torch.nn.Module):  # type: ignore[misc]
    """A submanifold layer and a strided one behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spconv.SubMConv3d(CHANNELS, CHANNELS, 3)
        self.second = spconv.SparseConv3d(CHANNELS, CHANNELS, 3, 2, 1)

    def forward(self, features: Any, coords: Any) -> Any:
        return self.second(self.first(spconv.SparseConvTensor(features, coords, [SIDE] * 3, 1))).features


@pytest.mark.parametrize("keep_maps", [True, False])
def test_a_network_meets_coordinates_in_several_threads(keep_maps: bool) -> None:
    coords = coordinates(0)
    net = sc.compile(Layers().eval(), (torch.randn(300, CHANNELS), coords), keep_maps=keep_maps)
    for seed in range(ROUNDS):
        coords = coordinates(seed)
        features = [torch.randn(300, CHANNELS) for _ in range(THREADS)]
        found = together([lambda one=one, coords=coords: net(one, coords) for one in features])  # type: ignore[misc]
        for one, result in zip(features, found, strict=True):
            assert torch.equal(result, net(one, coords.clone())), (seed, result)


def test_outputs_found_in_inference_mode_serve_every_mode() -> None:
    layer, coords, features = spconv.SparseConv3d(4, 4, 3, 2, 1), coordinates(1), torch.randn(300, 4)

    def run() -> Any:
        return layer(spconv.SparseConvTensor(features, coords, [SIDE] * 3, 1))

    with torch.inference_mode():
        first = run()
    again = run()
    assert again.features.requires_grad and not again.indices.is_inference()
    assert torch.equal(again.indices, first.indices)
    assert torch.equal(again.dense().detach(), first.dense())
