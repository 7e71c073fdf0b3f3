"""Networks found on disk by what a model does: only those, with the parameters at hand, without torch.export."""

from __future__ import annotations

import copy
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from network_cases import CHANNELS, SHAPE, voxels, with_integers
from torch import nn

import spconv_compiler as sc
import spconv_compiler.pytorch as spconv
from spconv_compiler import env
from spconv_compiler.cache import DiskCache
from spconv_compiler.errors import InputError
from spconv_compiler.network import remembered
from spconv_compiler.network.recorded_ops import Unsure
from spconv_compiler.network.recorder import record

CHILD = """
import pathlib, sys
sys.path[:0] = sys.argv[1:3]
import torch, test_network_remembered as here
import spconv_compiler as sc
here.remembered.open_disk_cache = lambda: here.DiskCache(pathlib.Path(sys.argv[3]), 2**26)
model = here.integers(here.Net())
net = sc.compile(model, here.voxels(40, 1), target="cpu")
given = here.voxels(150, 2)
with torch.no_grad():
    assert torch.equal(net(*given), model(*given))
late = [name for name in ("torch._dynamo", "sympy", "flydsl._mlir") if name in sys.modules]
print(" ".join(net.timings), "|", *late)
"""


class Net(nn.Module):
    """What the changes below change: one thing each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spconv.SubMConv3d(3, CHANNELS, 3, bias=True)
        self.norm = nn.BatchNorm1d(CHANNELS)
        self.act: nn.Module = nn.ReLU()
        self.down = spconv.SparseConv3d(CHANNELS, CHANNELS, 3, 2, padding=1, bias=False)
        self.shape, self.factor, self.twice, self.late = list(SHAPE), 2.0, False, False
        self.register_buffer("shift", torch.full((CHANNELS,), 3.0))

    def forward(self, features: torch.Tensor, indices: torch.Tensor, batch_size: int = 2) -> Any:
        x = self.first(spconv.SparseConvTensor(features, indices, self.shape, batch_size))
        rows = self.norm(x.features)
        rows = self.act(rows + self.shift) if self.late else self.act(rows) + self.shift
        x = self.down(x.replace_feature(rows * self.factor))
        if self.twice:
            x = x.replace_feature(x.features + x.features)
        return x.dense()


def integers(model: nn.Module) -> nn.Module:
    """The model in eval mode with whole numbers and a norm that does nothing inexact."""
    made = with_integers(model, 4)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eps = 0.0
    return made


def _set(**values: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, value in values.items():
            setattr(model, name, value)

    return change


CHANGES: dict[str, Callable[[Any], None]] = {
    "activation": _set(act=nn.LeakyReLU(0.5)),
    "slope": _set(act=nn.LeakyReLU(0.25)),
    "no activation": _set(act=nn.Identity()),
    "stride": lambda model: setattr(model.down, "stride", [2, 2, 1]),
    "padding": lambda model: setattr(model.down, "padding", [1, 1, 0]),
    "dilation": lambda model: setattr(model.first, "dilation", [1, 2, 1]),
    "kernel size": lambda model: setattr(model, "first", spconv.SubMConv3d(3, CHANNELS, 1, bias=True)),
    "no bias": lambda model: setattr(model.first, "bias", None),
    "constant": _set(factor=3.0),
    "order": _set(late=True),
    "branch": _set(twice=True),
    "spatial shape": _set(shape=[12, 12, 14]),
    "epsilon": lambda model: setattr(model.norm, "eps", 4.0),
    "no buffer": lambda model: _number(model),
    "statistics": lambda model: setattr(model.norm, "training", True),
    "dtype": lambda model: model.to(torch.bfloat16),
}


def _number(model: Any) -> None:
    del model.shift
    model.shift = 3.0


def recording(model: nn.Module, dtype: torch.dtype = torch.float32) -> list[str]:
    features, indices = voxels(40, 1)
    return record(model, (features.to(dtype), indices), {}, [indices.shape[0]])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels stay where they are; networks have a cache of their own."""
    monkeypatch.setattr(remembered, "open_disk_cache", lambda: DiskCache(tmp_path / "networks", 2**26))


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What goes through torch.export."""
    from spconv_compiler.network import export

    seen, real = list[Any](), export.export

    def counted(model: Any, *rest: Any) -> Any:
        seen.append(model)
        return real(model, *rest)

    monkeypatch.setattr(export, "export", counted)
    return seen


def compiled(model: nn.Module, *more: Any) -> Any:
    dtype = next(model.parameters()).dtype
    features, indices = voxels(40, 1)
    compile_model: Any = sc.compile
    return compile_model(model, (features.to(dtype), indices, *more), target="cpu")


def agree(net: Any, model: nn.Module, *more: Any) -> None:
    for count in (40, 170):
        features, indices = voxels(count, count)
        with torch.no_grad():
            assert torch.equal(net(features, indices, *more), model(features, indices, *more))


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changes_the_function_changes_the_recording(name: str) -> None:
    changed = integers(Net())
    known = recording(changed)
    assert recording(integers(Net())) == known
    CHANGES[name](changed)
    try:
        found = recording(changed, next(changed.parameters()).dtype)
    except Unsure:
        return
    assert found != known


def test_a_change_is_compiled_anew_and_right(exports: list[Any]) -> None:
    agree(compiled(integers(Net())), integers(Net()))
    assert len(exports) == 1
    for number, name in enumerate(("constant", "order"), start=2):
        changed = integers(Net())
        CHANGES[name](changed)
        agree(compiled(changed), changed)
        assert len(exports) == number
    model = integers(Net())
    agree(compiled(model, 3), model, 3)
    assert len(exports) == 4
    agree(compiled(integers(Net())), integers(Net()))
    assert len(exports) == 4


def test_parameters_are_those_at_hand(exports: list[Any]) -> None:
    compiled(integers(Net()))
    other: Any = with_integers(Net(), 9)
    with torch.no_grad():
        other.shift.copy_(torch.arange(CHANNELS))
        other.norm.running_mean.fill_(-1)
        other.norm.eps = 0.0
    net = compiled(other)
    assert len(exports) == 1
    agree(net, other)
    agree(copy.deepcopy(net), other)
    assert "spconv.subm_conv3d" in str(net.graph) and len(net.graph.parameters) > 0


class Ended(nn.Module):
    """A convolution and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = spconv.SubMConv3d(3, CHANNELS, 3), nn.BatchNorm1d(CHANNELS)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(spconv.SparseConvTensor(features, indices, SHAPE, 2)).features)


def test_numbers_too_large_to_fold_are_found_by_their_values(exports: list[Any]) -> None:
    """One recording, four networks: what eager makes infinite is no NaN, whichever of them was compiled first."""

    def scaled(factor: float, dtype: torch.dtype) -> Any:
        model: Any = integers(Ended())
        model.norm.weight.data.fill_(factor)
        model.norm.running_var.fill_(2.0**-8)
        return model.to(dtype)

    for dtype, factors in ((torch.float32, (1e18, 1e24, 1e37)), (torch.float16, (8.0, 6e4))):
        features, indices = voxels(40, 1)
        given, coords = voxels(150, 2)
        for order in (factors, factors[::-1]):
            steps = {}
            for factor in order:
                model = scaled(factor, dtype)
                net = sc.compile(model, (features.to(dtype), indices), target="cpu")
                with torch.no_grad():
                    found, wanted = net(given.to(dtype), coords), model(given.to(dtype), coords)
                assert torch.equal(found.isinf(), wanted.isinf()) and torch.equal(found.isnan(), wanted.isnan())
                assert bool(wanted.isinf().any()) == (factor in (1e37, 6e4)) and not wanted.isnan().any()
                steps[factor] = sum(step.operation == "affine" for step in net.plan.steps)
            assert all(steps[factor] > steps[factors[0]] for factor in factors[1:])
        # The second time, in another order, nothing is compiled.
        assert len(exports) == len(factors)
        exports.clear()


class Sparse(nn.Module):
    """Takes and gives SparseConvTensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = spconv.SubMConv3d(3, CHANNELS, 3, bias=False)

    def forward(self, x: Any) -> Any:
        return self.conv(x)


def test_trees_of_arguments_and_results_come_back(exports: list[Any]) -> None:
    model, compile_model = with_integers(Sparse(), 3), sc.compile
    features, indices = voxels(40, 1)
    x = spconv.SparseConvTensor(features, indices, SHAPE, 2)
    for _ in range(2):
        net: Any = compile_model(model, x, target="cpu")  # type: ignore[operator]
        with torch.no_grad():
            out = net(x)
            assert torch.equal(out.features, model(x).features)
        assert (out.spatial_shape, out.batch_size) == (SHAPE, 2)
    assert len(exports) == 1


class Linear(nn.Module):
    """A matrix that is computed of a parameter, and a dense head with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = spconv.SubMConv3d(3, CHANNELS, 3, bias=False)
        self.linear = nn.Linear(CHANNELS, CHANNELS)
        self.head = nn.Conv2d(CHANNELS * SHAPE[0], 2, 1)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> Any:
        x = self.conv(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        x = x.replace_feature(self.linear(x.features))
        return self.head(torch.flatten(x.dense(), 1, 2))


def test_values_that_go_into_a_network_are_part_of_its_key(exports: list[Any]) -> None:
    first, other = with_integers(Linear(), 1), with_integers(Linear(), 2)
    for model, count in ((first, 1), (other, 2), (first, 2), (other, 2)):
        agree(compiled(model), model)
        assert len(exports) == count


class Doubtful(nn.Module):
    """Asks what the recorder cannot say; what, is an argument."""

    def __init__(self, ask: Callable[[torch.Tensor, torch.Tensor, Any], Any]) -> None:
        super().__init__()
        self.conv = spconv.SubMConv3d(3, 3, 3, bias=False)
        self.ask, self.count, self.table = ask, 0, torch.ones(3)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> Any:
        x = self.conv(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        asked = self.ask(x.features, indices, self)
        return asked if isinstance(asked, torch.Tensor) else x.features


def _count(model: Any) -> None:
    model.count += 1


def _append(model: Any) -> None:
    model.conv._buffers["late"] = torch.zeros(1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, indices, model: x if x.shape[0] > 100000 else -x,
        lambda x, indices, model: x if x.shape[0] else -x,
        lambda x, indices, model: x * (1.0 if x.shape[0] == 7 else 2.0),
        lambda x, indices, model: x if len(x) > 3 else -x,
        lambda x, indices, model: x if x.numel() > 3 else -x,
        lambda x, indices, model: x if f"{x.shape}" else -x,
        lambda x, indices, model: x[: x.shape[0] // 2],
        lambda x, indices, model: [row for row in x],
        lambda x, indices, model: x if x.sum() > 0 else -x,
        lambda x, indices, model: x if indices[0, 0] == 0 else -x,
        lambda x, indices, model: x * float(model.conv.weight[0, 0, 0, 0, 0]),
        lambda x, indices, model: x * model.conv.weight.tolist()[0][0][0][0][0],
        lambda x, indices, model: x * int(indices.max()),
        lambda x, indices, model: x if indices.numpy().any() else -x,
        lambda x, indices, model: x + torch.rand(3),
        lambda x, indices, model: torch.dropout(x, 0.5, True),
        lambda x, indices, model: x * model.table,
        lambda x, indices, model: x[indices[:, 0] > 0],
        lambda x, indices, model: model.conv.weight.add_(1) and x,
        lambda x, indices, model: torch.relu_(indices),
        lambda x, indices, model: _count(model),
        lambda x, indices, model: _append(model),
        lambda x, indices, model: x.is_meta,
        lambda x, indices, model: x.data_ptr(),
    ],
)
def test_what_cannot_be_told_is_not_looked_up(ask: Callable[..., Any]) -> None:
    model: Any = integers(Doubtful(ask))
    state = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    # Why, is for torch.export to say.
    assert remembered.remember(model, voxels(40, 1), {}) is None
    assert not torch.compiler.is_compiling() and getattr(model, "count", 0) == 0 and "late" not in model.conv._buffers
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is state[name][0] and torch.equal(tensor, state[name][1])


def test_a_branch_on_the_number_of_voxels_is_refused_though_its_twin_is_known() -> None:
    compiled(integers(Doubtful(lambda x, indices, model: -x)))
    with pytest.raises(InputError, match="number of voxels|numbers of voxels"):
        compiled(integers(Doubtful(lambda x, indices, model: x if x.shape[0] > 100000 else -x)))


def test_damaged_entries_are_built_anew(tmp_path: pathlib.Path, exports: list[Any]) -> None:
    model = integers(Net())
    compiled(model)
    (file,) = (tmp_path / "networks").rglob("network.pt")
    whole = file.read_bytes()
    for content in (whole[:-40], whole[:400] + b"\0" + whole[401:], b""):
        file.write_bytes(content)
        agree(compiled(model), model)
    assert len(exports) == 4
    assert file.read_bytes() != b""
    # An entry that is whole, but no network.
    cache = DiskCache(tmp_path / "networks", 2**26)
    (entry,) = cache.entries()
    cache.remove(entry.key)
    cache.put(entry.key, {"network.pt": b"no network"}, entry.parts)
    agree(compiled(model), model)
    assert len(exports) == 5


def test_settings_that_are_to_show_something_are_obeyed(monkeypatch: pytest.MonkeyPatch, exports: list[Any]) -> None:
    model = integers(Net())
    compiled(model)
    monkeypatch.setenv(env.PRINT_AFTER.name, "all")
    compiled(model)
    assert len(exports) == 2


def test_two_processes_at_once_and_a_third_without_the_tracer(tmp_path: pathlib.Path) -> None:
    here = pathlib.Path(__file__).parent
    command = [sys.executable, "-c", CHILD, str(here), str(here.parent), str(tmp_path / "networks")]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    for child in [start(), start()]:
        assert child.communicate(timeout=300)[0].startswith("look up")
        assert child.returncode == 0
    last = start()
    assert last.communicate(timeout=300)[0].strip() == "look up kernels load |"
    assert last.returncode == 0
