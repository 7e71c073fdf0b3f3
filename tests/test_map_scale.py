"""Maps at the sizes where counters and offsets end: batches, rows, bytes, and powers of two of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import voxels

import spconv_compiler as sc
from spconv_compiler import api, compiler, reference
from spconv_compiler import reference_cross as rc
from spconv_compiler.errors import SpconvError

LAST_BATCH = 2**15 - 1


@pytest.mark.parametrize("target", ["cpu", "gfx950-sim"])
def test_no_number_of_voxels_is_compiled_for(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a geometry has run, other numbers of voxels, on both sides of powers of two, compile nothing."""
    shape, weight = (12, 30, 34), torch.ones(16, 3, 3, 3, 16)
    steps: dict[str, Any] = {"stride": 2, "padding": 1, "spatial_shape": shape, "batch_size": 1, "target": target}

    def run(rows: int) -> None:
        coords = torch.from_numpy(voxels(rows, shape, batches=1, seed=rows))
        out = sc.subm_conv3d(coords, torch.ones(rows, 16), weight, target=target)
        assert torch.equal(out[:, 0], 16.0 * torch.from_numpy((reference.kernel_map(coords.numpy()) >= 0).sum(axis=1)))
        tap, _, _ = sc.build_map(coords, 3, **steps).pairs()
        assert len(tap) >= rows

    run(300)
    sc.clear_caches()
    monkeypatch.setattr(compiler, "_build", lambda *given: pytest.fail("compiled again"))
    for rows in (1, 255, 257, 1024, 1025):
        run(rows)


@pytest.mark.parametrize("target", ["cpu", "gfx950-sim"])
def test_32768_batches(target: str) -> None:
    """Voxels of the first and the last batch at equal places, in boxes that need 64-bit keys: no two batches meet."""
    near = voxels(150, (9, 9, 9), batches=2, seed=0)
    near[:, 0] *= LAST_BATCH
    far = np.array([[b, 0, y, 1500] for b in (0, 1, LAST_BATCH - 1, LAST_BATCH) for y in (0, 8)], np.int32)
    coords = np.random.default_rng(0).permutation(np.concatenate([near, far]))
    map_ = sc.build_map(coords, 3, stride=2, padding=1, batch_size=2**15, target=target)
    assert np.array_equal(map_.out_coords, rc.outputs(coords, rc.Grid.of(3, 2, 1), shape=None))
    found = set(zip(*(column.tolist() for column in map_.pairs()), strict=True))
    assert found == set(rc.triples(coords, map_.out_coords, rc.Grid.of(3, 2, 1)))
    features = np.arange(len(coords) * 16, dtype=np.float32).reshape(-1, 16) % 7
    weight = np.ones((16, 3, 3, 3, 16), np.float32)
    out = sc.subm_conv3d(coords, features, weight, batch_size=2**15, target=target)
    assert np.array_equal(out, reference.subm_conv3d(coords, features, weight))


@pytest.mark.slow
def test_twenty_million_voxels() -> None:
    """Couples of neighbours along x, in random order: every voxel has itself and its mate. At most 3 GB in all."""
    couples = 10_000_000
    number = np.arange(couples, dtype=np.int32)
    coords = np.zeros((2, couples, 4), np.int32)
    coords[..., 1], coords[..., 2] = 3 * (number // 2**16), 3 * (number // 2**8 % 2**8)
    coords[..., 3] = 4 * (number % 2**8) + np.arange(2)[:, None]
    place = np.random.default_rng(0).permutation(2 * couples).astype(np.int32)
    rows = np.empty((2 * couples, 4), np.int32)
    rows[place] = coords.reshape(-1, 4)
    del coords
    features = np.zeros((2 * couples, 1), np.float32)
    features[place[:couples], 0] = number % 1000
    weight = np.ones((1, 3, 3, 3, 1), np.float32)
    map_: Any = api.cached_map(rows, 3)
    assert map_.rows == 2 * couples and map_.pairs == 4 * couples
    assert map_.nbytes <= 12 * map_.pairs + 40 * map_.rows
    out = sc.subm_conv3d(rows, features, weight)
    assert np.array_equal(out[place[:couples]], out[place[couples:]])
    assert np.array_equal(out[place[:couples], 0], number % 1000)


@pytest.mark.slow
def test_seven_million_outputs_spconv_656() -> None:
    """spconv#656: 3,921,805 × 64 → 7,135,456 × 192 fails in backward. Outputs are beyond 2^31 bytes here; a gradient is
    refused in words.
    """
    rows, outputs = 3_921_805, 7_135_456
    number = torch.arange(rows, dtype=torch.int64)
    # All alone: so many between two outputs along x reach both, the others one.
    both = (number < outputs - rows).int()
    place = [number * 0, number // 2**14 * 4, number // 2**7 % 2**7 * 4, number % 2**7 * 8 + both]
    coords = torch.stack(place, dim=1).int()
    features = torch.zeros(rows, 64, dtype=torch.float16)
    features[:, 5] = (number % 100).half()
    weight = torch.zeros(192, 1, 1, 3, 64, dtype=torch.float16)
    weight[191, ..., 5] = 1.0
    out_coords, out = sc.sparse_conv3d(coords, features, weight, stride=(1, 1, 2), padding=(0, 0, 1))
    assert out.shape == (outputs, 192) and out.numel() * 2 > 2**31
    _, z, y, x = out_coords.long().unbind(dim=1)
    assert torch.equal(out[:, 191], ((z * 2**12 + y * 2**5 + x // 4) % 100).half()) and not out[:, :191].any()
    _, few = sc.sparse_conv3d(coords[:9], features[:9].requires_grad_(), weight)
    with pytest.raises(SpconvError, match="sparse_conv3d has no backward pass in this version"):
        few.sum().backward()
