"""What an eager layer costs beside the function that it stands for, on few voxels: `spconv-bench net --layers`.

Both run in turns, in the thread's processor time, kernels included, maps kept. A layer of coordinates has a function of
coordinates beside it; the function beside an inverse layer is given the map, which the layer has to find.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import spconv_compiler
import spconv_compiler.pytorch as spconv

# Calls behind one time, and voxels of every case: of the last one, kernels take most of it.
_CALLS = 20
ROWS = (1, 8, 64, 512)
_CHANNELS = 16


def measure(rounds: int) -> list[dict[str, Any]]:
    """Medians of so many rounds, by case: layer, rows, functional_us, layer_us, added_us (of the differences)."""
    threads = torch.get_num_threads()
    # Kernels take no more than torch may.
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return [_compare(name, rows, *pair, rounds) for name, rows, pair in _cases()]
    finally:
        torch.set_num_threads(threads)


def _compare(
    name: str, rows: int, function: Callable[[], Any], layer: Callable[[], Any], rounds: int
) -> dict[str, Any]:
    wanted, found = function(), layer()
    if not torch.equal(found, wanted):
        raise AssertionError(f"{name} over {rows} voxels: the layer and its function differ")
    times: list[tuple[float, float]] = []
    for _ in range(rounds + 3):
        times.append((_time(function), _time(layer)))
    del times[:3]
    medians = [statistics.median(side) for side in zip(*times, strict=True)]
    added = statistics.median(one - other for other, one in times)
    return {"layer": name, "rows": rows, "functional_us": medians[0], "layer_us": medians[1], "added_us": added}


def _time(call: Callable[[], Any]) -> float:
    begin = time.thread_time_ns()
    for _ in range(_CALLS):
        call()
    return (time.thread_time_ns() - begin) / _CALLS / 1e3


def _cases() -> list[tuple[str, int, tuple[Callable[[], Any], Callable[[], Any]]]]:
    found = [("SubMConv3d", rows, _submanifold(rows, None)) for rows in ROWS]
    found += [("SubMConv3d, key", 8, _submanifold(8, "key")), ("SparseConv3d", 8, _strided(8))]
    return [*found, ("SparseInverseConv3d", 8, _inverse(8))]


def _input(rows: int) -> tuple[Any, Any, tuple[int, int, int]]:
    coords = torch.nn.functional.pad(torch.arange(rows).int()[:, None], (3, 0))
    return coords, torch.randn(rows, _CHANNELS), (8, 8, max(8, rows))


def _submanifold(rows: int, key: str | None) -> tuple[Callable[[], Any], Callable[[], Any]]:
    sc: Any = spconv_compiler
    coords, features, shape = _input(rows)
    layer = spconv.SubMConv3d(_CHANNELS, _CHANNELS, 3, indice_key=key).eval()
    x = spconv.SparseConvTensor(features, coords, list(shape), 1)
    x = x if key is None else layer(x).replace_feature(features)
    weights = layer.weight, layer.bias
    return (
        lambda: sc.subm_conv3d(coords, features, *weights, spatial_shape=shape, batch_size=1),
        lambda: layer(x).features,
    )


def _strided(rows: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    sc: Any = spconv_compiler
    coords, features, shape = _input(rows)
    layer = spconv.SparseConv3d(_CHANNELS, _CHANNELS, 2, 2).eval()
    x = spconv.SparseConvTensor(features, coords, list(shape), 1)
    where = {"stride": 2, "spatial_shape": shape, "batch_size": 1}
    weights = layer.weight, layer.bias
    return lambda: sc.sparse_conv3d(coords, features, *weights, **where)[1], lambda: layer(x).features


def _inverse(rows: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    sc: Any = spconv_compiler
    coords, features, shape = _input(rows)
    down = spconv.SparseConv3d(_CHANNELS, _CHANNELS, 2, 2, indice_key="key").eval()
    layer = spconv.SparseInverseConv3d(_CHANNELS, _CHANNELS, 2, "key").eval()
    coarse = down(spconv.SparseConvTensor(features, coords, list(shape), 1))
    map_ = sc.build_map(coords, 2, stride=2, spatial_shape=shape, batch_size=1)
    weights = layer.weight, layer.bias
    return lambda: sc.sparse_inverse_conv3d(coarse.features, *weights, map=map_), lambda: layer(coarse).features
