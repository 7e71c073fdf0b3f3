"""Copies of maps, by copy and by pickle: they give what the original gave, after it is gone and in another process."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spconv_compiler as sc
from spconv_compiler.runtime.cpu import CpuBuffer

RNG = np.random.default_rng(0)
COORDS = torch.from_numpy(np.argwhere(RNG.random((1, 12, 40, 40)) < 0.5).astype(np.int32))
PROGRAM = "import pickle, sys; print(sum(int(part.sum()) for part in pickle.load(sys.stdin.buffer).pairs()))"

Copier = Callable[[Any], Any]


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


COPIERS = pytest.mark.parametrize("copier", [copy.deepcopy, by_pickle])


@COPIERS
def test_a_map_between_sets(copier: Copier) -> None:
    features, weight = torch.randn(len(COORDS), 3), torch.randn(4, 3, 3, 3, 3)
    original = sc.build_map(COORDS.clone(), 3, stride=2, padding=1)
    expected, pairs = sc.mapped_conv3d(features, weight, map=original), original.pairs()
    found = copier(original)
    del original
    sc.clear_caches()
    gc.collect()
    assert torch.equal(sc.mapped_conv3d(features, weight, map=found), expected)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found.pairs(), pairs, strict=True))


def test_a_map_goes_to_another_process(repo: Path) -> None:
    original = sc.build_map(COORDS, 3, stride=2, padding=1)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input=pickle.dumps(original), capture_output=True, cwd=repo, check=True)
    assert int(done.stdout) == sum(int(part.sum()) for part in original.pairs())


@COPIERS
def test_maps_of_a_network_after_use(copier: Copier) -> None:
    """The copy's buffers were at the addresses of the original's, which somebody else then wrote to."""
    coords = COORDS.clone()
    maps = sc.build_maps(coords, {"subm": sc.MapGeometry(3, submanifold=True), "down": sc.MapGeometry(3, stride=2)})
    features, weight = torch.randn(len(coords), 3), torch.randn(4, 3, 3, 3, 3)
    sc.subm_conv3d(coords, features, weight)
    found = copier(maps)
    ours, theirs = found["subm"].kernel_map, maps["subm"].kernel_map
    assert (ours.rows, ours.pairs, ours.nbytes) == (theirs.rows, theirs.pairs, theirs.nbytes)
    for name, buffer in theirs.buffers.items():
        assert buffer.pointer != ours.buffers[name].pointer
        assert np.array_equal(buffer.array(), ours.buffers[name].array())
    assert torch.equal(found["down"].out_coords, maps["down"].out_coords)


@COPIERS
def test_a_buffer_owns_its_copy(copier: Copier) -> None:
    original = CpuBuffer("i32", 50_000)
    original.array()[:] = np.arange(50_000)
    found = copier(original)
    original.array()[:] = 7
    assert found.pointer != original.pointer and np.array_equal(found.array(), np.arange(50_000))
    assert found.pointer == found.array().__array_interface__["data"][0]
