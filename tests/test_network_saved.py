"""Networks compiled ahead of time: written with their kernels, run by a process that cannot compile."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from network_cases import CHANNELS, SHAPE, Residual, exact_norm, voxels, with_integers
from torch import nn

import spconv_compiler.pytorch as spconv
from spconv_compiler import bundle, compiler
from spconv_compiler.errors import InputError
from spconv_compiler.network.saved import export_network, load_network

# A child imports the model's parameters and nothing of the compiler.
WITHOUT_COMPILER = """
import sys
class NoCompiler:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "flydsl":
            raise ImportError("there is no flydsl")
sys.meta_path.insert(0, NoCompiler())
import torch
from spconv_compiler.network.saved import load_network
state = torch.load(sys.argv[1])
net = load_network(sys.argv[2], state["parameters"])
with torch.no_grad():
    torch.save([net(*frame) for frame in state["frames"]], sys.argv[3])
"""


class Net(nn.Module):
    """A residual block at a coarse scale, a dense result and one of rows."""

    def __init__(self) -> None:
        super().__init__()
        rng = random.Random(5)
        self.first = spconv.SparseSequential(spconv.SubMConv3d(3, CHANNELS, 3, bias=False), exact_norm(rng), nn.ReLU())
        self.down = spconv.SparseConv3d(CHANNELS, CHANNELS, 2, 2, bias=False)
        self.block = Residual(rng)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        return x.features, torch.flatten(self.block(self.down(x)).dense(), 1, 2)


class Coarse(nn.Module):
    """One level, made and left again."""

    def __init__(self) -> None:
        super().__init__()
        self.down = spconv.SparseConv3d(3, CHANNELS, 2, 2, bias=False, indice_key="down")
        self.up = spconv.SparseInverseConv3d(CHANNELS, 3, 2, indice_key="down", bias=False)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.up(self.down(spconv.SparseConvTensor(features, indices, SHAPE, 2))).features
        return rows


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[nn.Module, pathlib.Path]]:
    folder, model = tmp_path_factory.mktemp("saved"), with_integers(Net(), 3)
    assert export_network(model, voxels(60, 1), folder, target="cpu") >= 4
    yield model, folder
    bundle._added.clear()


def test_a_process_without_the_compiler_runs_it(saved: tuple[nn.Module, pathlib.Path], tmp_path: pathlib.Path) -> None:
    """Of any number of voxels, and with other parameters than it was exported with."""
    model, folder = saved
    other = with_integers(Net(), 4)
    frames = [voxels(count, count) for count in (80, 300, 1)]
    torch.save({"parameters": other.state_dict(), "frames": frames}, tmp_path / "in.pt")
    command = [sys.executable, "-c", WITHOUT_COMPILER, *map(str, (tmp_path / "in.pt", folder, tmp_path / "out.pt"))]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "SPCONV_CACHE": "off"})
    with torch.no_grad():
        for frame, found in zip(frames, torch.load(tmp_path / "out.pt"), strict=True):
            assert all(torch.equal(one, wanted) for one, wanted in zip(found, other(*frame), strict=True))
            assert len(frame[0]) < 80 or not torch.equal(found[0], model(*frame)[0])


def test_no_kernel_is_missing_on_a_gpu(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever mapper the number of voxels asks for: few are searched for, many looked up in a grid."""
    model = with_integers(Coarse(), 3)
    export_network(model, voxels(60, 1), tmp_path, target="gfx950-sim")
    frames = [voxels(count, count) for count in (80, 1, 300)]
    with torch.no_grad():
        wanted = [model(*frame) for frame in frames]

    def refuse(options: object, *_: object) -> None:
        raise AssertionError(f"{options} was not exported")

    monkeypatch.setenv("SPCONV_CACHE", "off")
    compiler.clear_memory()
    monkeypatch.setattr(compiler, "_compile", refuse)
    net = load_network(tmp_path, model.state_dict())
    with torch.no_grad():
        assert all(torch.equal(net(*frame), rows) for frame, rows in zip(frames, wanted, strict=True))
    bundle._added.clear()


def test_what_does_not_fit_is_named(saved: tuple[nn.Module, pathlib.Path], tmp_path: pathlib.Path) -> None:
    model, folder = saved
    parameters = model.state_dict()
    short = {name: tensor for name, tensor in parameters.items() if name != "down.weight"}
    with pytest.raises(InputError, match="needs a parameter 'down.weight'"):
        load_network(folder, short)
    with pytest.raises(InputError, match=r"down.weight has shape \[4, 3\]; accepted, as compiled: \[4, 2, 2, 2, 4\]"):
        load_network(folder, {**parameters, "down.weight": torch.zeros(4, 3)})
    with pytest.raises(InputError, match="holds no network"):
        load_network(tmp_path, parameters)
    torch.save({"format": 0}, tmp_path / "network.pt")
    with pytest.raises(InputError, match="of another version"):
        load_network(tmp_path, parameters)
