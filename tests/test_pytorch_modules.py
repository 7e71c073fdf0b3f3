"""The modules against dense torch, exactly: every kind of layer in one to three dimensions, containers, dtypes."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pytorch_cases import SHAPES, at, dense_conv, dense_of, occupied, sparse, whole
from torch import nn

import spconv_compiler.pytorch as spconv
from spconv_compiler.pytorch import functional


def layer_of(kind: str, ndim: int) -> Any:
    return getattr(spconv, f"{kind}{ndim}d")


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize(("ndim", "dilation"), [(1, 2), (2, 1), (3, 1), (3, 2)])
def test_submanifold(ndim: int, dilation: int) -> None:
    x, layer = sparse(ndim), whole(layer_of("SubMConv", ndim)(4, 4, 3, stride=2, padding=7, dilation=dilation))
    out = layer(x)
    wanted = dense_conv(x, layer, [dilation] * ndim)
    assert torch.equal(out.features, at(wanted, x.indices)) and out.indices is x.indices
    assert out.spatial_shape == x.spatial_shape


@pytest.mark.parametrize(("ndim", "geometry"), [(1, (4, 1, 2, 2)), (3, (3, 2, 1, 1)), (3, (2, 2, 0, 1))])
def test_strided(ndim: int, geometry: tuple[int, ...]) -> None:
    x, layer = sparse(ndim), whole(layer_of("SparseConv", ndim)(4, 4, *geometry, bias=False))
    out = layer(x)
    wanted = dense_conv(x, layer, layer.padding)
    assert out.spatial_shape == list(wanted.shape[2:])
    assert torch.equal(out.dense(), wanted)
    reached = nn.functional.conv3d if ndim == 3 else (nn.functional.conv1d, nn.functional.conv2d)[ndim - 1]
    window = reached(occupied(x), torch.ones(1, 1, *layer.kernel_size), None, *(v for v in geometry[1:]))
    assert torch.equal(occupied(out), (window > 0).float())


@pytest.mark.parametrize("ndim", [1, 3])
def test_transposed(ndim: int) -> None:
    x, layer = sparse(ndim), whole(layer_of("SparseConvTranspose", ndim)(4, 4, 3, 2, 1))
    out = layer(x)
    run = (nn.functional.conv_transpose1d, nn.functional.conv_transpose2d, nn.functional.conv_transpose3d)[ndim - 1]
    wanted = run(dense_of(x), layer.weight.movedim(-1, 0), layer.bias, 2, 1)
    assert out.spatial_shape == list(wanted.shape[2:])
    assert torch.equal(out.features, at(wanted, out.indices))
    outside = (wanted - layer.bias.view(1, -1, *[1] * ndim)) * (1 - occupied(out))
    assert not outside.any()


@pytest.mark.parametrize(
    ("ndim", "kind"),
    [(1, "SparseMaxPool"), (2, "SparseConv"), (3, "SparseConv"), (3, "SparseConvTranspose"), (3, "SparseMaxPool")],
)
def test_inverse(ndim: int, kind: str) -> None:
    """Back to the voxels of the keyed layer, through the same taps: the dense adjoint with the same weights."""
    x = sparse(ndim)
    channels = () if "Pool" in kind else (4, 4)
    down = whole(layer_of(kind, ndim)(*channels, 3, 2, 1, indice_key="down"))
    inverse = whole(layer_of("SparseInverseConv", ndim)(4, 4, 3, "down"))
    coarse = down(x)
    out = inverse(coarse)
    assert torch.equal(out.indices, x.indices) and out.spatial_shape == x.spatial_shape
    dims = ndim - 1
    if kind == "SparseConvTranspose":
        run = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[dims]
        wanted = run(dense_of(coarse), inverse.weight.movedim(-1, 1), inverse.bias, 2, 1)
    else:
        run = (nn.functional.conv_transpose1d, nn.functional.conv_transpose2d, nn.functional.conv_transpose3d)[dims]
        extra = [n - ((m - 1) * 2 + 1) for n, m in zip(x.spatial_shape, coarse.spatial_shape, strict=True)]
        wanted = run(dense_of(coarse), inverse.weight.movedim(-1, 0), inverse.bias, 2, 1, extra)
    assert torch.equal(out.features, at(wanted, x.indices))


def test_pools() -> None:
    """Maximum of the window's voxels and 0; mean of the window's voxels."""
    x = sparse()
    highest = spconv.SparseMaxPool3d(3, 2, 1)(x)
    # Absent voxels are 0 in a dense volume: just what spconv's clamped maximum says.
    assert torch.equal(highest.features, at(nn.functional.max_pool3d(dense_of(x), 3, 2, 1), highest.indices))
    assert highest.features.min() == 0
    mean = spconv.SparseAvgPool3d(2)(x)
    wanted = nn.functional.avg_pool3d(dense_of(x), 2) / nn.functional.avg_pool3d(occupied(x), 2).clamp(min=1e-9)
    torch.testing.assert_close(mean.features, at(wanted, mean.indices), rtol=1e-6, atol=0)
    assert mean.spatial_shape == [size // 2 for size in x.spatial_shape]


def test_global_pools() -> None:
    x = sparse(batches=2)
    batch = x.indices[:, 0]
    for layer, reduce in ((spconv.SparseGlobalMaxPool(), torch.amax), (spconv.SparseGlobalAvgPool(), torch.mean)):
        out = layer(x)
        wanted = torch.stack([reduce(x.features[batch == b], dim=0) for b in (0, 1)])
        torch.testing.assert_close(out, wanted)
    x.batch_size = 3
    assert not spconv.SparseGlobalMaxPool()(x)[2].any()


@pytest.mark.parametrize("kind", ["SubMConv3d", "SparseConv3d"])
def test_one_tap_reads_the_weights_memory_as_spconv_does(kind: str) -> None:
    x, layer = sparse(), whole(getattr(spconv, kind)(4, 6, 1, indice_key="unused"))
    out = layer(x)
    assert torch.equal(out.features, x.features @ layer.weight.reshape(-1).view(4, 6) + layer.bias)
    assert not torch.equal(out.features, x.features @ layer.weight.view(6, 4).T + layer.bias)
    assert out.indice_dict == {}


def test_one_tap_with_a_stride_is_a_convolution() -> None:
    x, layer = sparse(), whole(spconv.SparseConv3d(4, 6, 1, 2, bias=False))
    assert torch.equal(layer(x).dense(), dense_conv(x, layer, [0, 0, 0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    x = sparse()
    net = whole(
        spconv.SparseSequential(
            spconv.SubMConv3d(4, 4, 3, indice_key="a"),
            nn.ReLU(),
            spconv.SparseConv3d(4, 4, 2, 2, indice_key="d", bias=False),
            spconv.SparseMaxPool3d(2),
        )
    )
    wanted = net(x)
    out = net.to(dtype)(x.replace_feature(x.features.to(dtype)))
    assert out.features.dtype == dtype
    torch.testing.assert_close(out.features.float(), wanted.features, rtol=0.02, atol=1.0)


@pytest.mark.parametrize("training", [False, True])
def test_autocast(training: bool) -> None:
    """The dtype that was asked for, in train and in eval."""
    x, layer = sparse(), whole(spconv.SubMConv3d(4, 4, 3)).train(training)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x).features
        again = layer(x).features
    assert out.dtype == torch.bfloat16 and torch.equal(out, again)
    assert torch.equal(out, layer.to(torch.bfloat16)(x.replace_feature(x.features.bfloat16())).features)
    layer.float().weight.mul_(2)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(layer(x).features, out)


def test_sequential() -> None:
    named = OrderedDict(conv=spconv.SubMConv3d(4, 4, 3), norm=nn.BatchNorm1d(4))
    net = spconv.SparseSequential(named)
    net.add(nn.ReLU())
    assert list(net.state_dict()) == [
        *("conv.weight", "conv.bias", "norm.weight", "norm.bias"),
        *("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
    ]
    assert len(net) == 3 and isinstance(net[-1], nn.ReLU) and isinstance(net[0], spconv.SubMConv3d)
    with pytest.raises(IndexError):
        net[3]
    x = sparse()
    norm = net.eval()[1]
    norm.running_mean.fill_(0.5)
    assert torch.equal(net(x).features, norm(net[0](x).features).relu())
    dense = spconv.SparseSequential(net, spconv.ToDense(), nn.Conv3d(4, 2, 1))(x)
    assert dense.shape == (2, 2, *SHAPES[3])


def test_features_modules_and_tables() -> None:
    x = sparse()
    assert torch.equal(spconv.SparseReLU()(x).features, x.features.relu())
    assert torch.equal(spconv.SparseBatchNorm(4).eval()(x).features, nn.BatchNorm1d(4).eval()(x.features))
    assert spconv.SparseIdentity()(x).indices is x.indices and spconv.Identity()(x) is x
    both = spconv.ConcatTable().add(spconv.Identity()).add(spconv.SparseReLU())(x)
    assert torch.equal(spconv.AddTable()(both).features, x.features + x.features.relu())
    assert torch.equal(spconv.JoinTable()(both).features, torch.cat([x.features, x.features.relu()], dim=1))
    x.grid = torch.zeros(1)
    assert spconv.RemoveGrid()(x).grid is None


def test_sparse_add_over_different_voxels() -> None:
    x, y, z = sparse(seed=1), sparse(seed=2, n=50), sparse(seed=3)
    out = functional.sparse_add(x, y, z)
    assert torch.equal(out.dense(), x.dense() + y.dense() + z.dense())
    assert torch.equal(occupied(out), (occupied(x) + occupied(y) + occupied(z)).clamp(max=1))
    keys = torch.stack([out.indices[:, axis].long() * 100 ** (3 - axis) for axis in range(4)]).sum(0)
    assert bool((keys.diff() > 0).all())
    subset = out.select_by_index(torch.arange(5))
    subset.indice_dict, out.indice_dict = {}, {"kept": None}
    assert functional.sparse_add(subset, out).indice_dict == {"kept": None}
    assert torch.equal(spconv.AddTableMisaligned()([x, x]).features, 2 * x.features)


def test_sparse_tensor() -> None:
    x = sparse()
    assert torch.equal(x.dense(), dense_of(x))
    assert torch.equal(x.dense(channels_first=False), dense_of(x).movedim(1, -1))
    assert x.spatial_size == 7 * 8 * 9 and x.sparity == 30 / (2 * 504) and x.ndim == 3
    back = spconv.SparseConvTensor.from_dense(x.dense(channels_first=False))
    assert torch.equal(back.dense(), x.dense()) and back.spatial_shape == x.spatial_shape
    assert torch.equal((x + x).features, 2 * x.features) and torch.equal(x.minus().features, -x.features)
    assert torch.equal((x + torch.ones(4)).features, x.features + 1)
    copied = x.shadow_copy()
    assert copied is not x and copied.features is x.features and copied.indice_dict is x.indice_dict


def test_keys_are_noted_in_copies() -> None:
    x = sparse()
    first = spconv.SubMConv3d(4, 4, 3, indice_key="a").eval()(x)
    assert x.indice_dict == {} and first.find_indice_pair("a").is_subm
    second = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="b").eval()(first)
    note = second.find_indice_pair("b")
    assert sorted(second.indice_dict) == ["a", "b"] and sorted(first.indice_dict) == ["a"]
    assert note.indices is x.indices and note.out_indices is second.indices
    assert note.spatial_shape == SHAPES[3] and note.out_spatial_shape == second.spatial_shape
    assert first.find_indice_pair(None) is None and first.find_indice_pair("b") is None


def test_recorded_voxel_counts() -> None:
    layer = whole(spconv.SparseConv3d(4, 4, 2, 2, record_voxel_count=True))
    rows = [layer(sparse(n=n)).features.shape[0] for n in (10, 60, 30)]
    assert layer.get_max_num_voxels().tolist() == [max(rows)] == [rows[1]]
    assert "max_num_voxels_during_training" in layer.state_dict()
    assert spconv.SparseConv3d(4, 4, 2, 2).get_max_num_voxels() is None


def test_residual_and_activation() -> None:
    x, layer = sparse(), whole(spconv.SparseConvolution(3, 4, 4, 3, subm=True, act_type="relu"))
    plain = whole(spconv.SparseConvolution(3, 4, 4, 3, subm=True))
    assert torch.equal(layer(x).features, plain(x).features.relu())
    assert torch.equal(layer(x, add_input=x).features, (plain(x).features + x.features).relu())


def test_dtypes_and_places_of_modules() -> None:
    """The ways in which users move and convert models, all to the same result."""
    layers = spconv.SubMConv3d(4, 4, 3, indice_key="a"), nn.BatchNorm1d(4), spconv.SparseConv3d(4, 4, 2, 2)
    net, x = whole(spconv.SparseSequential(*layers)), sparse()
    wanted = net(x).features
    with torch.device("meta"):
        empty = copy.deepcopy(net).to("meta")
    empty.load_state_dict(net.state_dict(), strict=True, assign=True)
    placed = spconv.SparseSequential(*copy.deepcopy(layers)).to("meta").to_empty(device="cpu")
    placed.load_state_dict(net.state_dict(), strict=True)
    halved = [copy.deepcopy(net).half().float(), copy.deepcopy(net).to(torch.float16).to(torch.float32)]
    for other in (empty, placed, net.to("cpu"), *halved):
        assert torch.allclose(other.eval()(x).features, wanted, rtol=1e-3)
    for short in (torch.float16, torch.bfloat16):
        out = copy.deepcopy(net).to(short)(x.replace_feature(x.features.to(short))).features
        assert out.dtype == short and torch.allclose(out.float(), wanted, rtol=2e-2, atol=1.0)
    assert torch.equal(net[1:](net[:1](x)).features, wanted) and list(net[1:]._modules) == ["1", "2"]
    before = net(x).features
    net[0].weight.data.copy_(2 * net[0].weight)
    assert not torch.equal(net(x).features, before)


def test_copies_and_pickles() -> None:
    net = whole(spconv.SparseSequential(spconv.SubMConv3d(4, 4, 3, indice_key="a"), spconv.SparseMaxPool3d(2)))
    x = sparse()
    wanted = net(x).features
    saved = io.BytesIO()
    torch.save(net, saved)
    saved.seek(0)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(saved, weights_only=False)):
        assert torch.equal(other(x).features, wanted)
    noted = net[0](x)
    for same in (copy.copy(noted), copy.deepcopy(noted), pickle.loads(pickle.dumps(noted))):
        assert torch.equal(net[0](same).features, net[0](noted).features) and list(same.indice_dict) == ["a"]


def test_names_of_layers() -> None:
    net = spconv.SparseSequential(spconv.SparseSequential(spconv.SubMConv3d(4, 6, 3)))
    assert net[0][0].describe() == "SubMConv3d(4, 6, kernel_size=[3, 3, 3], stride=[1, 1, 1])"
    spconv.assign_name_for_sparse_modules(net)
    assert net[0][0].describe() == "SubMConv3d '0.0'"
    assert spconv.SubMConv3d(4, 6, 3, name="stem").describe() == "SubMConv3d 'stem'"
    assert spconv.modules.is_spconv_module(net) and not spconv.modules.is_spconv_module(nn.ReLU())
    assert spconv.modules.is_sparse_conv(net[0][0]) and not spconv.modules.is_sparse_conv(net)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx950-sim"])
def test_another_target(target: str) -> None:
    x, net = sparse(n=20), whole(spconv.SubMConv3d(4, 16, 3))
    with spconv.use_target(target):
        assert spconv.current_target() == target
        out = net(x).features
    assert spconv.current_target() != target
    assert torch.equal(out, net(x).features)


@pytest.fixture
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swapping")
def test_parameters_that_torch_swaps_for_new_ones() -> None:
    """torch refuses tensors that anything refers to weakly, as caches of packed weights do."""
    rng = torch.Generator().manual_seed(3)
    indices = torch.nn.functional.pad(torch.arange(12).int()[:, None], (3, 0))
    features = torch.randn(12, 4, generator=rng)
    layers = [spconv.SparseSequential(spconv.SubMConv3d(4, 6, 3), spconv.SparseConv3d(6, 4, 2, 2)).eval() for _ in "ab"]
    x, short = (spconv.SparseConvTensor(values, indices, [4, 4, 12], 1) for values in (features, features.bfloat16()))
    with torch.no_grad():
        first, other = (layer(x).features for layer in layers)
        weight = layers[0][0].weight
        layers[0].load_state_dict(layers[1].state_dict())
        assert layers[0][0].weight is weight and torch.equal(layers[0](x).features, other)
        assert not torch.equal(first, other)
        wanted = copy.deepcopy(layers[1]).bfloat16()(short).features
        assert torch.equal(layers[0].to(torch.bfloat16)(short).features, wanted)
        assert layers[0][0].weight is weight and weight.dtype is torch.bfloat16
