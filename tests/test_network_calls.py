"""Arguments of compiled networks, what torch.export refuses, and sums whose operands come in any order."""

from __future__ import annotations

import pathlib
import random
import re
import sys
from typing import Any

import pytest

import spconv_compiler
from spconv_compiler.errors import InputError, ToolchainError

sc: Any = spconv_compiler
torch = pytest.importorskip("torch")

from network_cases import SHAPE, exact_norm, voxels, with_integers  # noqa: E402
from torch import nn  # noqa: E402

import spconv_compiler.pytorch as spconv  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")


class Sums(nn.Module):
    """Two convolutions of one input, and norms for their results."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self._forward = forward
        self.a, self.b = spconv.SubMConv3d(3, 4, 3), spconv.SubMConv3d(3, 4, 1)
        self.main = spconv.SubMConv3d(4, 4, 3, bias=False)
        self.norm, self.other = exact_norm(random.Random(1)), exact_norm(random.Random(2))

    def forward(self, features: Any, indices: Any) -> Any:
        return self._forward(self, spconv.SparseConvTensor(features, indices, SHAPE, 2))


def block(norms: str, swapped: bool) -> Any:
    """A residual block whose projection comes after its main path."""

    def forward(model: Any, x: Any) -> Any:
        y = model.a(x)
        y = model.main(y.replace_feature(torch.relu(y.features))).features
        y = model.norm(y) if "main" in norms else y
        z = model.b(x).features
        z = model.other(z) if "projection" in norms else z
        return torch.relu(z + y if swapped else y + z)

    return forward


def later(model: Any, x: Any) -> Any:
    """The sum's other operand is no convolution, and is made later."""
    first = model.a(x).features
    return first + torch.cat([x.features, x.features[:, :1]], dim=1)


def both(model: Any, x: Any) -> Any:
    first, second = model.a(x).features, model.b(x).features
    return first + second, second


def chain(model: Any, x: Any) -> Any:
    first, second = model.a(x), model.b(x)
    total = torch.relu(first.features + second.features)
    return model.main(first.replace_feature(total)).features + total


SUMS = {
    "sparse": lambda model, x: (model.a(x) + model.b(x)).features,
    "relu": lambda model, x: torch.relu(model.a(x).features + model.b(x).features),
    "later": later,
    "both": both,
    "chain": chain,
    **{
        f"{norms}-{swapped}": block(norms, swapped)
        for norms in ("no", "main", "projection")
        for swapped in (False, True)
    },
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_operands_in_any_order_are_eager_to_the_last_bit(name: str) -> None:
    model = with_integers(Sums(SUMS[name]), 1)
    net = sc.compile(model, voxels(40, 1), target="cpu")
    given = voxels(150, 2)
    found, wanted = (torch.utils._pytree.tree_leaves(function(*given)) for function in (net, model))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert wanted[0].abs().max() > 0
    if name not in ("later", "both"):
        # The sum is in the later convolution.
        assert not any(step.operation == "pointwise" for step in net.plan.steps)


class Options(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = spconv.SubMConv3d(3, 4, 3)

    def forward(
        self, features: Any, indices: Any, batch_size: int, scale: float = 1.0, flag: bool = False, shape: Any = None
    ) -> Any:
        x = self.conv(spconv.SparseConvTensor(features, indices, shape or SHAPE, batch_size)).dense() * scale
        return torch.relu(x) if flag else x


def test_arguments_that_are_no_tensors_are_constants() -> None:
    model, (f, i) = with_integers(Options(), 1), voxels(40, 1)
    net = sc.compile(model, (f, i, 2), target="cpu")
    wanted = model(f, i, 2)
    accepted: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((f, i, 2), {}),
        ((f, i, 2, 1.0, False), {}),
        ((), {"indices": i, "features": f, "batch_size": 2}),
        ((f, i), {"batch_size": 2, "shape": None}),
    ]
    for args, kwargs in accepted:
        assert torch.equal(net(*args, **kwargs), wanted)
    refused: list[tuple[dict[str, Any], str, str]] = [
        ({"batch_size": 1}, "1", "2"),
        ({"batch_size": 2.0}, "2.0", "2"),
        ({"batch_size": torch.tensor(2)}, r"a tensor of int64 \[\]", "2"),
        ({"batch_size": 2, "scale": 2.0}, "2.0", "1.0"),
        ({"batch_size": 2, "flag": True}, "True", "False"),
        ({"batch_size": 2, "shape": [9, 9, 9]}, r"\[9, 9, 9\]", "None"),
    ]
    for kwargs, found, compiled in refused:
        name = list(kwargs)[-1]
        with pytest.raises(InputError, match=f"'{name}' is {found}, .* compiled with {compiled}; accepted: {compiled}"):
            net(f, i, **kwargs)
    with pytest.raises(InputError, match=r"'indices' is 3; accepted, as in the example: a tensor"):
        net(f, 3, 2)
    with pytest.raises(InputError, match=r"missing a required argument: 'indices'; accepted: \(features, indices, b"):
        net(f)
    with pytest.raises(InputError, match=r"too many positional arguments; accepted: \(features, .*scale=1.0"):
        net(f, i, 2, 1.0, False, None, 7)
    with pytest.raises(InputError, match=r"missing a required argument: 'batch_size'; accepted: \(features"):
        sc.compile(model, (f, i), target="cpu")


def test_defaults_are_compared_with_what_was_compiled() -> None:
    model, (f, i) = with_integers(Options(), 1), voxels(40, 1)
    named = {"indices": i, "features": f, "batch_size": 2, "scale": 2.0, "shape": [12, 12, 12]}
    net = sc.compile(model, kwargs=named, target="cpu")
    assert torch.equal(net(f, i, 2, 2.0, shape=[12, 12, 12]), model(**named))
    with pytest.raises(InputError, match="'scale' is 1.0, and the model was compiled with 2.0"):
        net(f, i, 2, shape=[12, 12, 12])
    with pytest.raises(InputError, match=r"'shape' is None; accepted, as in the example: \[12, 12, 12\]"):
        net(f, i, 2, 2.0)
    with pytest.raises(InputError, match="'shape_1' is 13, and the model was compiled with 12"):
        net(f, i, 2, 2.0, shape=[12, 13, 12])


def test_arguments_of_exported_programs() -> None:
    model, (f, i) = with_integers(Options(), 1), voxels(40, 1)
    net = sc.compile(torch.export.export(model, (f, i), {"batch_size": 2}, strict=False), target="cpu")
    assert torch.equal(net(indices=i, features=f, batch_size=2), model(f, i, 2))
    with pytest.raises(InputError, match="'batch_size' is 1, and the model was compiled with 2"):
        net(f, i, batch_size=1)


class FromValues(Options):
    def forward(self, features: Any, indices: Any) -> Any:  # type: ignore[override]
        print("the model's own words", file=sys.stderr)
        count = int(indices[:, 0].max()) + 1  # the culprit
        return super().forward(features, indices, count)


def test_numbers_that_depend_on_values_are_named_with_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing else is said: torch would print the whole graph up to there."""
    line = FromValues.forward.__code__.co_firstlineno + 2
    with pytest.raises(InputError, match=rf"values of a tensor; at .*test_network_calls.py:{line}; .* constant"):
        sc.compile(with_integers(FromValues(), 1), voxels(40, 1), target="cpu")
    assert set(capsys.readouterr().err.splitlines()) == {"the model's own words"}


class Odd(Options):
    """What torch.export cannot trace, or traces for the example alone."""

    def __init__(self, rest: Any) -> None:
        super().__init__()
        self._rest = rest

    def forward(self, features: Any, indices: Any) -> Any:  # type: ignore[override]
        return self._rest(self, self.conv(spconv.SparseConvTensor(features, indices, SHAPE, 2)).features)


class Held:
    def __init__(self, value: Any) -> None:
        self.value = value


OTHER = "the model is another for other numbers of voxels: "
ODD = {
    "more": (lambda model, x: x if x.shape[0] > 45 else x + 1, OTHER + r".*compared .* N, and found N <= 45; accepted"),
    "even": (lambda model, x: x if x.shape[0] % 2 else x + 1, OTHER + r".*compared their number N, .*Mod\(N, 2\)"),
    "reshape": (lambda model, x: x.reshape(40, 4), OTHER + "the example's 40 are a constant in its Python code; acc"),
    "list": (lambda model, x: x.tolist(), OTHER + "the example's 40 are a constant"),
    "numpy": (lambda model, x: x.numpy().sum(), r"cannot be traced: .*numpy.*; at .*test_network_calls.py:\d+; acc"),
    "class": (lambda model, x: Held(x), r"cannot be traced: .*Held.* in output.*; accepted: .*SparseConvTensors"),
}


@pytest.mark.parametrize("name", ODD)
def test_models_that_cannot_be_traced_for_any_number_of_voxels(name: str) -> None:
    rest, match = ODD[name]
    with pytest.raises(InputError, match=match) as found:
        sc.compile(Odd(rest).eval(), voxels(40, 1), target="cpu")
    for word in ("Dim.", "mark_dynamic", "L['", "draft_export", "s3"):
        assert word not in str(found.value)


def test_errors_of_the_model_are_its_own() -> None:
    for error in (ValueError("mine"), RuntimeError("mine"), InputError("mine")):

        def rest(model: Any, x: Any, error: Exception = error) -> Any:
            raise error

        with pytest.raises(type(error), match="^mine$"):
            sc.compile(Odd(rest).eval(), voxels(40, 1), target="cpu")
    with pytest.raises(InputError, match=r"no coordinates among a ndarray; accepted: a tensor int32 \[N, 4\]"):
        sc.compile(Odd(lambda model, x: x).eval(), tuple(tensor.numpy() for tensor in voxels(40, 1)), target="cpu")


def test_a_torch_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, repo: pathlib.Path) -> None:
    # torch.export.Dim is a function there.
    monkeypatch.setattr(torch.export, "Dim", lambda name: name)
    # A network that is on disk needs no torch.export.
    monkeypatch.setenv("SPCONV_CACHE", "off")
    version = rf"torch {torch.__version__[:3]}.*"
    with pytest.raises(ToolchainError, match=version + "has no torch.export.Dim.DYNAMIC.*; accepted: ") as e:
        sc.compile(Sums(later).eval(), voxels(40, 1), target="cpu")
    (least,) = re.findall(r"accepted: torch (\S+) or newer", str(e.value))
    assert f'torch = ["torch>={least}"]' in (repo / "pyproject.toml").read_text()


def test_a_grid_that_leaves_no_room() -> None:
    """Levels of 0 cells, and what follows: nothing, as in the eager model and in traces."""

    class Vanishing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = spconv.SubMConv3d(3, 4, 3), spconv.SparseConv3d(4, 4, 3, 2), spconv.SubMConv3d(4, 4, 3)
            self.layers = spconv.SparseSequential(*layers, spconv.SparseConv3d(4, 5, 3, 2))

        def forward(self, features: Any, indices: Any) -> Any:
            return self.layers(spconv.SparseConvTensor(features, indices, [2, 9, 9], 1)).features

    model = Vanishing().eval()
    indices = torch.tensor([[0, 1, row, row] for row in range(6)], dtype=torch.int32)
    given = torch.randn(6, 3), indices
    exported = torch.export.export(model, given).module()
    for run in (model, exported, torch.compile(model, fullgraph=True, dynamic=True), sc.compile(model, given)):
        assert run(*given).shape == (0, 5)
