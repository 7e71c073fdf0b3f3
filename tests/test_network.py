"""Compiled networks against the eager modules: equal to the last bit for whole numbers, with any number of voxels."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest

import spconv_compiler

sc: Any = spconv_compiler
torch = pytest.importorskip("torch")

from network_cases import SHAPE, RandomNet, Residual, voxels, with_integers  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import spconv_compiler.pytorch as spconv  # noqa: E402
from spconv_compiler import compiler  # noqa: E402
from spconv_compiler.nets.backbones import centerpoint  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")


def built() -> int:
    """Kernels that this process has compiled, or taken from the disk."""
    counts = compiler._kernel_cache().counts
    return counts.built + counts.disk


def equal(found: Any, wanted: Any) -> bool:
    return all(torch.equal(found[name], wanted[name]) for name in wanted) and found.keys() == wanted.keys()


@pytest.mark.parametrize("seed", range(4))
def test_random_networks_are_eager_to_the_last_bit(seed: int) -> None:
    model = with_integers(RandomNet(seed), seed)
    net = sc.compile(model, voxels(150, seed), target="cpu")
    given = [voxels(count, seed + count) for count in (150, 600, 1, 0, 2)]
    # Eager layers have kernels of their own.
    wanted = [model(*item) for item in given]
    before = built()
    found = [net(*item) for item in given]
    assert built() == before
    for one, other in zip(found, wanted, strict=True):
        assert equal(one, other), (model.kinds, len(one["indices"]))
    assert 0 < wanted[1]["features"].abs().max() < 2**24


class Backbone(nn.Module):
    """Two scales, residual blocks, a dense head."""

    def __init__(self) -> None:
        super().__init__()
        import random

        rng = random.Random(0)
        self.stem = spconv.SparseSequential(spconv.SubMConv3d(3, 4, 3, bias=False, indice_key="s"), nn.ReLU())
        self.block = Residual(rng)
        self.down = spconv.SparseSequential(spconv.SparseConv3d(4, 4, 2, 2, bias=False), nn.ReLU())
        self.deep = Residual(rng)
        self.head = nn.Conv2d(4 * 6, 2, 1)

    def forward(self, x: Any) -> tuple[Any, Any]:
        x = self.block(self.stem(x))
        y = self.deep(self.down(x))
        return x, self.head(y.dense().flatten(1, 2))


def as_sparse(features: Any, indices: Any) -> Any:
    return spconv.SparseConvTensor(features, indices, SHAPE, 2)


def test_a_backbone_with_a_dense_head() -> None:
    model = with_integers(Backbone(), 3)
    net = sc.compile(model, as_sparse(*voxels(200, 1)), target="cpu")
    # One kernel a convolution: norms, activations and sums are in them.
    assert [step.operation for step in net.plan.steps] == ["subm_conv"] * 3 + ["conv"] + ["subm_conv"] * 2
    assert len(net.plan.maps) == 3
    assert [step.name for step in net.plan.steps][:3] == ["stem.0", "block.conv1", "block.conv2"]
    for count in (200, 50, 0):
        given = as_sparse(*voxels(count, count))
        (sparse, dense), (eager_sparse, eager_dense) = net(given), model(given)
        assert isinstance(sparse, spconv.SparseConvTensor)
        assert torch.equal(sparse.features, eager_sparse.features)
        assert torch.equal(sparse.indices, eager_sparse.indices)
        assert sparse.spatial_shape == eager_sparse.spatial_shape
        assert torch.equal(dense, eager_dense)


def test_memory_is_shared_and_reported() -> None:
    model = with_integers(Backbone(), 3)
    net = sc.compile(model, as_sparse(*voxels(1000, 1)), target="cpu")
    net(as_sparse(*voxels(1500, 2)))
    report = net.memory_report()
    fine, coarse = 1500 * 4 * 4, 2 * 6**3 * 4 * 4
    # The residual's sum lies where the shortcut was, and that in the tensor of the result: one array beside it.
    assert report.features <= 2 * fine + 2 * coarse + 256
    assert report.eager_features >= 3 * fine
    assert report.maps < report.eager_maps
    assert report.parameters > 0


class LivePeak(TorchDispatchMode):
    """The most bytes of tensors that ops have made and that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        if storage._cdata not in self._known:
            key, size = storage._cdata, storage.nbytes()
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


@pytest.mark.slow
def test_the_backbone_of_centerpoint_needs_less_than_six_tenths_of_eager_memory() -> None:
    shape = (41, 400, 400)
    model = centerpoint(spconv, 5, shape).eval()
    points = torch.rand(60_000, 2) * 380
    ground = torch.stack([torch.zeros(len(points)), 3 + points.sum(1) / 100, *points.unbind(1)], dim=1).int()
    indices = torch.unique(ground, dim=0)
    features = torch.randn(len(indices), 5)
    net = sc.compile(model, (features, indices), target="cpu")
    torch.testing.assert_close(net(features, indices), model(features, indices), rtol=1e-3, atol=1e-3)
    with LivePeak() as eager:
        model(features, indices)
    report = net.memory_report()
    dense = model(features, indices).nbytes
    print(report, eager.peak, dense)
    assert report.features + report.maps <= 0.6 * (eager.peak - dense + report.eager_maps)


def test_maps_are_kept_with_their_coordinates_and_not_longer() -> None:
    model = with_integers(Backbone(), 4)
    net = sc.compile(model, as_sparse(*voxels(200, 1)), target="cpu", keep_maps=True)
    given = as_sparse(*voxels(300, 2))
    first, second = net(given), net(given)
    assert torch.equal(first[1], second[1])
    assert len(net._frames) == 1
    given.indices[:, 1] = (given.indices[:, 1] + 1) % 12
    assert torch.equal(net(given)[1], model(given)[1])
    assert not torch.equal(net(given)[1], first[1])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_short_floats_are_rounded_no_more_than_eager(dtype: Any) -> None:
    torch.manual_seed(0)
    model = Backbone().eval().to(dtype)
    given = voxels(200, 5)
    net = sc.compile(model, as_sparse(given[0].to(dtype), given[1]), target="cpu")
    exact = Backbone().eval().float()
    exact.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    wanted = exact(as_sparse(*given))[0].features
    errors = [
        (out[0].features.float() - wanted).abs().mean().item()
        for out in (net(as_sparse(given[0].to(dtype), given[1])), model(as_sparse(given[0].to(dtype), given[1])))
    ]
    assert errors[0] <= 1.1 * errors[1]


def test_calls_from_several_threads() -> None:
    model = with_integers(Backbone(), 5)
    net = sc.compile(model, as_sparse(*voxels(200, 1)), target="cpu")
    given = [as_sparse(*voxels(100 + 50 * number, number)) for number in range(4)]
    wanted = [model(item)[1] for item in given]
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                if not torch.equal(net(given[number])[1], wanted[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Rows(nn.Module):
    """Ops on rows that no convolution takes over."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(3, 4)
        self.conv = spconv.SubMConv3d(4, 4, 3)
        self.act, self.last = nn.LeakyReLU(0.2), nn.Linear(8, 2, bias=False)

    def forward(self, features: Any, indices: Any) -> tuple[Any, Any]:
        x = torch.nn.functional.gelu(self.linear(self.norm(features)))
        y = self.conv(spconv.SparseConvTensor(x, indices, SHAPE, 2))
        both = torch.cat([self.act(y.features), torch.nn.functional.silu(x)], dim=1)
        return self.last(both).argmax(1), both + both


def test_ops_on_rows() -> None:
    torch.manual_seed(1)
    model = Rows().eval()
    net = sc.compile(model, voxels(100, 1), target="cpu")
    operations = [step.operation for step in net.plan.steps]
    assert operations == ["affine", "subm_conv", "subm_conv", "pointwise", "concat", "subm_conv", "pointwise"]
    given = voxels(400, 2)
    (classes, both), (eager_classes, eager_both) = net(*given), model(*given)
    torch.testing.assert_close(both, eager_both, rtol=1e-5, atol=1e-6)
    assert (classes == eager_classes).float().mean() > 0.99


def test_what_is_compiled_is_told_and_counted() -> None:
    model = with_integers(Backbone(), 6)
    told: list[tuple[int, int, str]] = []
    sc.clear_caches()
    net = sc.compile(model, as_sparse(*voxels(20, 1)), target="cpu", progress=lambda *step: told.append(step))
    assert [step[0] for step in told] == list(range(1, net.compiled + 1))
    again = sc.compile(model, as_sparse(*voxels(20, 1)), target="cpu")
    assert again.compiled == 0
    assert set(again.timings) == {"look up", "kernels", "load"}


def test_asking_for_a_gradient_raises() -> None:
    model = with_integers(Backbone(), 7)
    net = sc.compile(model, as_sparse(*voxels(20, 1)), target="cpu")
    features, indices = voxels(30, 1)
    with torch.enable_grad():
        out = net(as_sparse(features.requires_grad_(), indices))[1]
        with pytest.raises(sc.SpconvError, match="no backward pass"):
            out.sum().backward()


@pytest.mark.slow
def test_gfx950_code_of_a_network_on_the_simulator() -> None:
    model = with_integers(Backbone(), 8)
    net = sc.compile(model, as_sparse(*voxels(60, 1)), target="gfx950-sim")
    for count in (60, 25, 0):
        given = as_sparse(*voxels(count, count))
        (sparse, dense), (eager_sparse, eager_dense) = net(given), model(given)
        assert torch.equal(sparse.features, eager_sparse.features)
        assert torch.equal(dense, eager_dense)
    own, maps = net._runner.launches()
    assert len(own) == 6
    # Norms, sums and activations are in the kernels of submanifold convolutions.
    assert [count for step, count in zip(net.plan.steps, own, strict=True) if step.operation == "subm_conv"] == [1] * 5
    assert maps <= 20


def test_arguments_on_two_devices_are_refused() -> None:
    features, indices = voxels(20, 1)
    net = sc.compile(with_integers(Rows(), 1), (features, indices), target="cpu")
    with pytest.raises(sc.InputError, match=r"is on (cpu|meta) but \w+ is on (cpu|meta); accepted: one device for all"):
        net(features.to("meta"), indices)
