"""Numbers on features, unions of coordinate sets, int64 indices, copies and pickles of compiled networks."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import spconv_compiler
from spconv_compiler import reference_cross
from spconv_compiler.errors import InputError

sc: Any = spconv_compiler
torch = pytest.importorskip("torch")

from network_cases import SHAPE, RandomNet, voxels, with_integers  # noqa: E402
from torch import nn  # noqa: E402

import spconv_compiler.pytorch as spconv  # noqa: E402
from spconv_compiler.network.export import export  # noqa: E402
from spconv_compiler.pytorch.functional import sparse_add  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")


class Scaled(nn.Module):
    """Two convolutions with `between` on the features of the first."""

    def __init__(self, between: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._between = between
        self.first, self.last = spconv.SubMConv3d(3, 4, 3, bias=False), spconv.SubMConv3d(4, 4, (1, 1, 3), bias=False)
        self.gain = nn.Parameter(torch.tensor([0.5, 2.0, -1.0, 4.0]))
        self.register_buffer("portion", torch.tensor(0.5))

    def forward(self, features: Any, indices: Any) -> Any:
        x = self.first(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        return self.last(x.replace_feature(self._between(self, x.features))).features


NUMBERS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    # How many steps are left beside the convolutions, and what the model does.
    "add": (0, lambda m, x: x + 3),
    "radd": (0, lambda m, x: 1.5 + x),
    "sub": (0, lambda m, x: x - 2),
    "rsub": (0, lambda m, x: 2 - x),
    "mul": (0, lambda m, x: 0.25 * x),
    "div": (0, lambda m, x: x / 4),
    "neg": (0, lambda m, x: -x),
    "gain": (0, lambda m, x: x * m.gain),
    "row": (0, lambda m, x: m.gain[None, :] * x),
    "buffer": (0, lambda m, x: x * m.portion - m.portion),
    "by vector": (0, lambda m, x: x / m.gain),
    "chain": (0, lambda m, x: torch.relu((x * 2 + 1) * m.gain - 0.5)),
    "alpha": (2, lambda m, x: torch.add(x, torch.relu(x), alpha=2)),
    "in place": (0, lambda m, x: x.clone().mul_(2).add_(1)),
    "difference": (2, lambda m, x: torch.relu(x) - x),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_on_features_are_eager_to_the_last_bit(name: str) -> None:
    steps, between = NUMBERS[name]
    model = with_integers(Scaled(between), 1)
    net = sc.compile(model, voxels(40, 1), target="cpu")
    given = voxels(150, 2)
    assert torch.equal(net(*given), model(*given)) and model(*given).abs().max() > 0
    rows = [step.operation for step in net.plan.steps if step.operation != "subm_conv"]
    assert len(rows) <= steps + 1, rows


def test_a_number_of_the_run_is_named() -> None:
    model = Scaled(lambda m, x: x * x.mean()).eval()
    with pytest.raises(InputError, match=r"node mean .*: there is no such op for rows, and subm_conv3d_1 needs its re"):
        sc.compile(model, voxels(40, 1), target="cpu")


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = spconv.SubMConv3d(3, 4, 3)

    def forward(self, features: Any, indices: Any) -> Any:
        x = self.conv(spconv.SparseConvTensor(features, indices, SHAPE, 2)).features
        return x * torch.sigmoid(x) / x.abs().max()


def test_products_behind_the_last_convolution_stay_in_torch() -> None:
    model = with_integers(Tail(), 1)
    net = sc.compile(model, voxels(40, 1), target="cpu")
    given = voxels(90, 2)
    assert torch.equal(net(*given), model(*given))


class Union(nn.Module):
    """Two strided paths of different reach, added; then convolved, and convolved further down."""

    def __init__(self, third: bool = False) -> None:
        super().__init__()
        self.fine, self.wide = spconv.SparseConv3d(3, 4, 2, 2), spconv.SparseConv3d(3, 4, 3, 2, 1)
        self.third: Any = spconv.SparseConv3d(3, 4, 1, 2) if third else None
        self.after, self.down = spconv.SubMConv3d(4, 4, 3), spconv.SparseConv3d(4, 4, 2, 2)

    def forward(self, features: Any, indices: Any) -> Any:
        x = spconv.SparseConvTensor(features, indices, SHAPE, 2)
        paths = [self.fine(x), self.wide(x)] + ([] if self.third is None else [self.third(x)])
        total = sparse_add(*paths)
        total = total.replace_feature(torch.relu(total.features))
        after = self.after(total)
        down = self.down(after)
        return total.features, total.indices, after.features, down.features, down.indices


@pytest.mark.parametrize("third", [False, True])
def test_sums_over_unions_are_eager_to_the_last_bit(third: bool) -> None:
    model = with_integers(Union(third), 2)
    net = sc.compile(model, voxels(40, 1), target="cpu")
    assert sum(level.union is not None for level in net.plan.levels) == 1 + third
    for count in (40, 200, 1, 0):
        given = voxels(count, 10 + count)
        found, wanted = net(*given), model(*given)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True)), count
    x = spconv.SparseConvTensor(*voxels(60, 3), SHAPE, 2)
    sets = [path(x).indices for path in (model.fine, model.wide)]
    union = spconv.ops.union_coords(*sets, [6, 6, 6], 2)
    assert union.tolist() == [list(voxel) for voxel in reference_cross.union(*sets)]
    assert not torch.equal(*sets) if len(sets[0]) == len(sets[1]) else True


class Inputs(nn.Module):
    """A sum of two inputs, each with coordinates of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = spconv.SubMConv3d(3, 4, 3)

    def forward(self, one: Any, two: Any) -> Any:
        return self.conv(sparse_add(one, two)).dense()


def test_two_inputs_over_one_union_and_one_set() -> None:
    model = with_integers(Inputs(), 1)
    first, second = (spconv.SparseConvTensor(*voxels(count, count), SHAPE, 2) for count in (50, 70))
    net = sc.compile(model, (first, second), target="cpu")
    assert torch.equal(net(second, first), model(second, first))
    assert torch.equal(net(first, first), model(first, first))
    outside = second.indices.clone()
    outside[4, 2] = 12
    with pytest.raises(InputError, match="1 coords are out of range, the first in row 4"):
        net(first, spconv.SparseConvTensor(second.features, outside, SHAPE, 2))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = spconv.SparseConv3d(3, 4, 2, 2)

    def forward(self, features: Any, indices: Any) -> Any:
        x = self.conv(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        return x.features, x.indices


def test_int64_indices_are_converted_if_they_fit() -> None:
    model, (features, indices) = with_integers(Wide(), 1), voxels(60, 1)
    wanted = model(features, indices)
    programs: list[Any] = [model, sc.compile(model, (features, indices), target="cpu")]
    programs += [sc.compile(model, (features, indices.long()), target="cpu")]
    programs += [export(model, (features, indices.long())).module()]
    for number, program in enumerate(programs):
        found = program(features, indices.long())
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1]), number
        assert found[1].dtype == torch.int32
        large = indices.long()
        large[5, 1] += 2**32
        with pytest.raises(InputError, match="1 (coords|rows of indices) are outside int32, the first in row 5"):
            program(features, large)


def saved(net: Any) -> Any:
    """Through torch.save."""
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.filterwarnings("error")
def test_copies_and_pickles_of_networks() -> None:
    model = with_integers(RandomNet(2), 2)
    net = sc.compile(model, voxels(80, 1), target="cpu", keep_maps=True)
    given = voxels(150, 2)
    wanted = net(*given)
    holder = nn.Module()
    holder.net = net
    copies = [copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net)), saved(net)]
    for other in (*copies, copy.deepcopy(holder).net):
        assert other is not net and other._runner is not net._runner
        found = other(*given)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        assert str(other.graph) == str(net.graph) and str(other.plan) == str(net.plan)
        assert other.memory_report().features == net.memory_report().features
        with pytest.raises(InputError, match=r"accepted: \(features, indices\)"):
            other(*given, 1)


def test_a_pickled_network_does_not_need_its_model() -> None:
    model = with_integers(Union(), 1)
    net = sc.compile(model, voxels(40, 1), target="cpu")
    text, given = pickle.dumps(net), voxels(50, 2)
    wanted = net(*given)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            parameter.zero_()
    assert b"test_network_rows" not in text.replace(b"test_network_rows.py", b"")
    found = pickle.loads(text)(*given)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert found[0].abs().max() > 0
