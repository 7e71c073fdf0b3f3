"""Eager layers that call the driver directly: equal to the dispatched op, whatever has changed since the last call."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import spconv_compiler
from spconv_compiler.errors import InputError

sc: Any = spconv_compiler
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import spconv_compiler.pytorch as spconv  # noqa: E402
from spconv_compiler import api  # noqa: E402
from spconv_compiler.pytorch import calls, ops  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")
SHAPE = [9, 10, 11]


def voxels(count: int = 40, channels: int = 5, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(2 * 9 * 10 * 11, generator=generator)[:count]
    columns = [cells // 990, cells // 110 % 9, cells // 11 % 10, cells % 11]
    features = torch.randint(-4, 5, (count, channels), generator=generator).float()
    return spconv.SparseConvTensor(features, torch.stack(columns, 1).int(), SHAPE, 2)


def layer_of_integers(act_type: str | None = None, **more: Any) -> Any:
    layer = spconv.SubMConv3d(5, 6, 3, **more).eval()
    layer.act_type = act_type
    for parameter in layer.parameters():
        parameter.copy_(torch.randint(-3, 4, parameter.shape))
    return layer


def dispatched(layer: Any, x: Any) -> Any:
    """The op through torch's dispatcher, on copies that no cache has seen."""
    rest = ([*layer.dilation], [*SHAPE], 2, "relu" if layer.act_type else "none")
    bias = None if layer.bias is None else layer.bias.detach().clone()
    return ops.subm_conv3d(x.features.clone(), x.indices.clone(), layer.weight.detach().clone(), bias, *rest)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with every call that looks whether it may be quick: whether it was."""
    found: list[bool] = []
    run = calls._quick

    def noted(*given: Any) -> Any:
        made = run(*given)
        found.append(made is not None)
        return made

    monkeypatch.setattr(calls, "_quick", noted)
    return found


def _reload(layer: Any, x: Any) -> Any:
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})
    return layer, x


def _under_the_counter(layer: Any, x: Any) -> Any:
    layer.weight.data.numpy()[:] += 2
    x.indices.numpy()[:] = x.indices.flip(0).numpy()
    return layer, x


def _swapped(layer: Any, x: Any) -> Any:
    layer.weight = nn.Parameter(layer.weight * 2)
    layer.bias = None
    return layer, x


def _parametrized(layer: Any, x: Any) -> Any:
    class Doubled(nn.Module):
        def forward(self, weight: Any) -> Any:
            return 2 * weight

    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
    return layer, x


def _hooked(layer: Any, x: Any) -> Any:
    layer.register_forward_pre_hook(lambda module, given: (given[0].replace_feature(given[0].features * 2),))
    return layer, x


def _resized(layer: Any, x: Any) -> Any:
    layer.dilation = [1, 2, 1]
    return layer, x


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda layer, x: (layer, x),
    "in place": lambda layer, x: (layer, [layer.weight.mul_(2), layer.bias.add_(1), x][-1]),
    "reload": _reload,
    "under the counter": _under_the_counter,
    "swapped": _swapped,
    "parametrized": _parametrized,
    "dilation": _resized,
    "deepcopy": lambda layer, x: (copy.deepcopy(layer), x),
    "pickle": lambda layer, x: (pickle.loads(pickle.dumps(layer)), x),
    "bf16": lambda layer, x: (layer.bfloat16(), x.replace_feature(x.features.bfloat16())),
    "f16": lambda layer, x: (layer.half(), x.replace_feature(x.features.half())),
    "columns": lambda layer, x: (layer, x.replace_feature(torch.cat([x.features] * 2, 1)[:, ::2])),
    "other voxels": lambda layer, x: (layer, voxels(90, seed=3)),
    "one voxel": lambda layer, x: (layer, voxels(1)),
    "no voxel": lambda layer, x: (layer, voxels(0)),
    "caches": lambda layer, x: (layer, [sc.clear_caches(), x][-1]),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("more", [{}, {"act_type": "relu", "indice_key": "k"}], ids=["plain", "key"])
def test_a_changed_layer_or_input_is_noticed(name: str, more: dict[str, Any], quick: list[bool]) -> None:
    layer, x = layer_of_integers(**more), voxels()
    for _ in range(2):
        assert torch.equal(layer(x).features, dispatched(layer, x))
    assert quick[-1:] == [True]
    layer, x = CHANGES[name](layer, x)
    found = [layer(x) for _ in range(2)]
    assert quick[-1:] == [True] and found[0].indices is x.indices
    assert all(torch.equal(one.features, dispatched(layer, x)) for one in found)
    assert len(x.indices) == 0 or found[0].features.abs().max() > 0


def test_a_hook_runs() -> None:
    layer, x = layer_of_integers(bias=False), voxels()
    once = layer(x).features
    layer, x = _hooked(layer, x)
    assert torch.equal(layer(x).features, 2 * once)


def _wide(layer: Any, x: Any) -> Any:
    layer.double()
    return x


def _outside(layer: Any, x: Any) -> Any:
    x.indices[3, 1] = 9
    return x


def _twice(layer: Any, x: Any) -> Any:
    x.indices[5] = x.indices[2]
    return x


def _moved(layer: Any, x: Any) -> Any:
    x.indices = x.indices[1:]
    return x


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "dtype": (_wide, "features are torch.float32 and the weight is torch.float64"),
    "channels": (lambda layer, x: x.replace_feature(x.features[:, 1:]), "features have 4 channels"),
    "range": (_outside, "1 coords are out of range, the first in row 3"),
    "twice": (_twice, "2 and 5|rows? 2"),
    "rows": (_moved, "40 rows .* 39"),
    "batch": (lambda layer, x: [setattr(x, "batch_size", 1), x][-1], "out of range"),
    "no batch": (lambda layer, x: [setattr(x, "batch_size", 0), x][-1], "batch_size is 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_as_in_a_first_call(name: str) -> None:
    change, match = REFUSED[name]
    layer, x = layer_of_integers(), voxels()
    for _ in range(2):
        layer(x)
    x = change(layer, x)
    messages = []
    for _ in range(2):
        with pytest.raises(InputError, match=match) as error:
            layer(x)
        messages.append(str(error.value))
    sc.clear_caches()
    with pytest.raises(InputError) as error:
        layer(x)
    assert {*messages, str(error.value)} == {messages[0]}


class _Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class _Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [_Seen, _Dispatched])
def test_modes_see_the_ops(kind: Any) -> None:
    layer, strided, x = layer_of_integers(), spconv.SparseConv3d(5, 6, 2, 2), voxels()
    wanted = [layer(x).features, strided(x).features]
    with kind() as seen:
        found = [layer(x).features, strided(x).features]
    assert all(map(torch.equal, found, wanted))
    assert {"spconv_compiler.subm_conv3d.default", "spconv_compiler.sparse_conv3d.default"} <= {*seen.names}


def test_transforms_of_features() -> None:
    layer, x = layer_of_integers(), voxels()

    def run(features: Any) -> Any:
        return layer(x.replace_feature(features)).features

    both = torch.vmap(run)(torch.stack([x.features, -x.features]))
    assert torch.equal(both, torch.stack([run(x.features), run(-x.features)]))
    assert torch.equal(torch.func.functionalize(run)(x.features), run(x.features))
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled), pytest.raises(InputError, match="has a tangent of forward-mode"):
            torch.func.jvp(run, (x.features,), (x.features,))
    twice = {name: 2 * value for name, value in layer.named_parameters()}
    assert torch.equal(torch.func.functional_call(layer, twice, (x,)).features, 2 * run(x.features))


def test_kernels_that_are_forgotten_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of_integers(), voxels()
    asked: list[Any] = []
    find = api.find_kernel
    monkeypatch.setattr(api, "find_kernel", lambda request: asked.append(request) or find(request))
    sc.clear_caches()
    for _ in range(3):
        layer(x)
    assert len(set(asked)) == 1
    before = len(asked)
    sc.clear_caches()
    layer(x)
    assert len(asked) > before


def _up_and_down() -> tuple[Any, Any, Any]:
    """(a strided layer, its inverse, voxels)."""
    down = spconv.SparseConv3d(5, 6, 3, 2, 1, indice_key="d").eval()
    up = spconv.SparseInverseConv3d(6, 4, 3, "d").eval()
    for parameter in (*down.parameters(), *up.parameters()):
        parameter.copy_(torch.randint(-3, 4, parameter.shape))
    return down, up, voxels()


def _wanted(up: Any, coarse: Any) -> Any:
    """What the op makes of it through the dispatcher, on copies that no cache has seen."""
    note = coarse.indice_dict["d"]
    given = coarse.features.clone(), note.out_coords.clone(), note.coords.clone(), up.weight.detach().clone()
    return ops.sparse_conv3d(*given, up.bias.detach().clone(), [2] * 3, [1] * 3, [1] * 3, True, "none")


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with every inverse layer: whether the map of the layer that wrote its key was at hand."""
    found: list[bool] = []
    run = calls.inverse_over

    def noted(*given: Any) -> Any:
        made = run(*given)
        found.append(made is not None)
        return made

    monkeypatch.setattr(calls, "inverse_over", noted)
    return found


def test_an_inverse_layer_takes_the_map_of_the_layer_that_wrote_its_key(at_hand: list[bool]) -> None:
    down, up, x = _up_and_down()
    coarse = down(x)
    for _ in range(2):
        out = up(coarse)
        assert torch.equal(out.features, _wanted(up, coarse)) and out.indices is x.indices
    assert out.features.abs().max() > 0 and at_hand == [True, True]


def test_a_map_at_hand_is_left_where_coordinates_were_written_to(at_hand: list[bool]) -> None:
    """Two rows of the inputs change places in place: the inverse gives rows in the new order."""
    down, up, x = _up_and_down()
    coarse = down(x)
    x.indices[[0, 1]] = x.indices[[1, 0]]
    assert torch.equal(up(coarse).features, _wanted(up, coarse)) and at_hand == [False]


def test_copies_of_notes_hold_no_map(at_hand: list[bool]) -> None:
    down, up, x = _up_and_down()
    coarse = down(x)
    assert coarse.indice_dict["d"].kept is not None
    for copied in (copy.deepcopy(coarse), pickle.loads(pickle.dumps(coarse))):
        assert copied.indice_dict["d"].kept is None
        assert torch.equal(up(copied).features, up(coarse).features)
    assert at_hand == [False, True] * 2


def test_a_map_of_another_target_is_not_at_hand(at_hand: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    down, up, x = _up_and_down()
    coarse = down(x)
    monkeypatch.setattr(calls, "current_target", lambda: "x86-64-v3")
    assert torch.equal(up(coarse).features, _wanted(up, coarse)) and at_hand == [False]
