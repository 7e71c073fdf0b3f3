"""The dictionary oracle of strided, transposed and inverse ops, against torch's dense ops and against spconv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conv_cases import voxels
from cross_cases import GRIDS, SHAPE

from spconv_compiler import reference_cross as rc


def dense(coords: Any, values: npt.NDArray[Any], shape: tuple[int, ...], batches: int) -> torch.Tensor:
    """[batches, C, *shape] float64."""
    volume = np.zeros((batches, *shape, values.shape[1]))
    volume[tuple(np.asarray(coords).T)] = values
    return torch.from_numpy(volume).permute(0, 4, 1, 2, 3)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_against_dense_torch(grid: tuple[Any, ...], transposed: bool) -> None:
    """Values at active outputs, and the active set: where ones in and ones in the kernel give anything."""
    geometry = rc.Grid.of(*grid)
    coords = voxels(60, SHAPE, batches=2, seed=1)
    rng = np.random.default_rng(0)
    features = rng.integers(-3, 4, (60, 3)).astype(np.float64)
    weight = rng.integers(-3, 4, (4, *geometry.kernel_size, 3)).astype(np.float64)
    options: dict[str, Any] = {name: getattr(geometry, name) for name in ("stride", "padding", "dilation")}

    def convolve(values: npt.NDArray[Any], kernel: npt.NDArray[Any]) -> torch.Tensor:
        volume, filters = dense(coords, values, SHAPE, 2), torch.from_numpy(kernel)
        if transposed:
            return torch.nn.functional.conv_transpose3d(volume, filters.permute(4, 0, 1, 2, 3), None, **options)
        return torch.nn.functional.conv3d(volume, filters.permute(0, 4, 1, 2, 3), None, **options)

    result = convolve(features, weight)
    shape = tuple(result.shape[2:])
    if not transposed or geometry.dilation == (1, 1, 1):
        assert shape == (geometry.transposed_shape(SHAPE) if transposed else geometry.output_shape(SHAPE))
    active = convolve(np.ones((60, 1)), np.ones((1, *geometry.kernel_size, 1)))[:, 0].numpy()
    out_coords = rc.outputs(coords, geometry, transposed=transposed, shape=shape)
    assert out_coords == [tuple(row) for row in np.argwhere(active > 0.5).tolist()]
    found = rc.conv3d(coords, out_coords, features, weight, geometry, transposed=transposed)
    assert np.array_equal(found, result.permute(0, 2, 3, 4, 1).numpy()[tuple(np.array(out_coords).T)])


@pytest.mark.parametrize("kernel", [2, 3, (3, 1, 1)])
def test_pools_against_dense_torch(kernel: Any) -> None:
    geometry = rc.Grid.of(kernel, 2)
    coords = voxels(80, SHAPE, seed=2)
    features = np.random.default_rng(0).standard_normal((80, 3))
    shape = geometry.output_shape(SHAPE)
    out_coords = np.array(rc.outputs(coords, geometry, shape=shape))
    place = tuple(out_coords.T)
    # Absent voxels are below every present one.
    volume = dense(coords, features + 100.0, SHAPE, 1)
    greatest = torch.nn.functional.max_pool3d(volume, geometry.kernel_size, 2)
    found = rc.pool3d(coords, out_coords, features, geometry, "max")
    assert np.allclose(found, greatest.permute(0, 2, 3, 4, 1).numpy()[place] - 100.0)
    sums, counts = (
        torch.nn.functional.avg_pool3d(dense(coords, values, SHAPE, 1), geometry.kernel_size, 2)
        for values in (features, np.ones((80, 3)))
    )
    mean = (sums / counts).permute(0, 2, 3, 4, 1).numpy()[place]
    assert np.allclose(rc.pool3d(coords, out_coords, features, geometry, "avg"), mean)


def test_inverse_is_the_transpose_of_the_forward_map() -> None:
    """<forward(x), y> = <x, inverse(y)> with the weight's channels exchanged."""
    geometry = rc.Grid.of(3, 2, 1)
    coords = voxels(70, SHAPE, seed=3)
    out_coords = rc.outputs(coords, geometry)
    rng = np.random.default_rng(0)
    x, y = rng.integers(-3, 4, (70, 2)), rng.integers(-3, 4, (len(out_coords), 5))
    weight = rng.integers(-3, 4, (5, 3, 3, 3, 2))
    forward = rc.conv3d(coords, out_coords, x, weight, geometry)
    inverse = rc.conv3d(out_coords, coords, y, weight.transpose(4, 1, 2, 3, 0), geometry, transposed=True)
    assert (forward * y).sum() == (x * inverse).sum() != 0


PEER = """
import json, sys
import torch, spconv.pytorch as spconv
from spconv.core import ConvAlgo
answers = []
for given in json.loads(sys.stdin.read()):
    coords = torch.tensor(given["coords"], dtype=torch.int32)
    features = torch.tensor(given["features"], dtype=torch.float32)
    kind = spconv.SparseConvTranspose3d if given["transposed"] else spconv.SparseConv3d
    options = dict(bias=False, algo=ConvAlgo.Native)
    layer = kind(features.shape[1], given["c_out"], *given["grid"], indice_key="a", **options).eval()
    back = spconv.SparseInverseConv3d(given["c_out"], 2, given["grid"][0], indice_key="a", **options).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(given["weight"]))
        back.weight.copy_(torch.tensor(given["back"]))
        y = layer(spconv.SparseConvTensor(features, coords, given["shape"], given["batches"]))
        z = back(y)
    answers.append({"indices": y.indices.tolist(), "features": y.features.tolist(), "shape": list(y.spatial_shape),
                    "back": z.features.tolist(), "back_indices": z.indices.tolist()})
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def questions() -> dict[str, dict[str, Any]]:
    """One convolution and one inverse convolution of every grid and direction."""
    found = {}
    for name, grid in GRIDS.items():
        geometry = rc.Grid.of(*grid)
        for transposed in (False, True):
            rng = np.random.default_rng(len(found))
            steps = (geometry.kernel_size, geometry.stride, geometry.padding, geometry.dilation)
            found[f"{name}-{transposed}"] = {
                "coords": voxels(60, SHAPE, batches=2, seed=4).tolist(),
                "features": rng.integers(-3, 4, (60, 3)).tolist(),
                "weight": rng.integers(-3, 4, (4, *geometry.kernel_size, 3)).astype(float).tolist(),
                "back": rng.integers(-3, 4, (2, *geometry.kernel_size, 4)).astype(float).tolist(),
                **{"transposed": transposed, "grid": steps, "c_out": 4, "shape": SHAPE, "batches": 2},
            }
    return found


@pytest.fixture(scope="module")
def answers(questions: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What spconv's CPU wheel says to all questions, from this Python or the one that PEER_PYTHON names."""
    python = os.environ.get("PEER_PYTHON", sys.executable)
    # With more threads spconv's results are wrong.
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    settings.pop("PYTHONPATH")
    if subprocess.run([python, "-c", "import spconv"], capture_output=True, env=settings, check=False).returncode:
        pytest.skip("spconv is not installed (pip install spconv==2.3.8, or PEER_PYTHON=<python that has it>)")
    text = json.dumps(list(questions.values()))
    done = subprocess.run([python, "-c", PEER], input=text, capture_output=True, text=True, env=settings, check=True)
    return dict(zip(questions, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_against_spconv(grid: str, transposed: bool, questions: dict[str, Any], answers: dict[str, Any]) -> None:
    """Output shape, output set, values, and the inverse convolution through the stored pairs."""
    geometry = rc.Grid.of(*GRIDS[grid])
    question, answer = questions[f"{grid}-{transposed}"], answers[f"{grid}-{transposed}"]
    coords = np.array(question["coords"])
    shape = geometry.transposed_shape(SHAPE) if transposed else geometry.output_shape(SHAPE)
    assert tuple(answer["shape"]) == shape
    order = np.lexsort(np.array(answer["indices"]).T[::-1])
    out_coords = rc.outputs(coords, geometry, transposed=transposed, shape=shape)
    assert np.array_equal(np.array(answer["indices"])[order], out_coords)
    features, weight, back = (np.array(question[name]) for name in ("features", "weight", "back"))
    result = rc.conv3d(coords, out_coords, features, weight, geometry, transposed=transposed)
    assert np.array_equal(np.array(answer["features"])[order], result)
    if np.prod(geometry.kernel_size) == 1:
        return  # spconv takes the inverse of a 1x1x1 convolution for a plain one and stays on its outputs
    assert np.array_equal(answer["back_indices"], coords)
    inverse = rc.conv3d(out_coords, coords, result, back, geometry, transposed=not transposed)
    assert np.array_equal(np.array(answer["back"]), inverse)
