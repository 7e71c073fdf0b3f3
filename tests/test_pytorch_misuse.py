"""Bad input and misuse that users of sparse convolutions ran into: right here, or an error that says what is wrong.

Names say what happened to them; the behaviour is docs/from_spconv.md's.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_cases import at, dense_conv, sparse, whole
from torch import nn

import spconv_compiler.pytorch as spconv
from spconv_compiler.errors import InputError
from spconv_compiler.pytorch import convert, functional, ops


def refused(match: str) -> Any:
    return pytest.raises(InputError, match=match)


@pytest.fixture
def inference() -> Any:
    with torch.no_grad():
        yield


# Devices and memory.


def test_module_and_input_on_different_devices() -> None:
    layer = spconv.SubMConv3d(4, 4, 3, name="stem").to("meta")
    with refused("SubMConv3d 'stem': features are on cpu, indices on cpu and the weight on meta"):
        layer(sparse())
    x = sparse()
    x.indices = x.indices.to("meta")
    with refused("indices on meta"):
        spconv.SubMConv3d(4, 4, 3)(x)
    with refused("SparseMaxPool3d.*features are on cpu but indices on meta"):
        spconv.SparseMaxPool3d(2)(x)


@pytest.mark.parametrize("gradients", [False, True])
def test_all_on_a_device_that_is_not_served(gradients: bool) -> None:
    """A model moved to "meta", say, and what it is given too: not torch's error about autocast or a lost context."""
    x = sparse()
    x = spconv.SparseConvTensor(x.features.to("meta"), x.indices.to("meta"), x.spatial_shape, 2)
    layers = (spconv.SubMConv3d(4, 4, 3), spconv.SubMConv3d(4, 4, 1), spconv.SparseConv3d(4, 4, 3, 2, 1))
    with torch.set_grad_enabled(gradients):
        x.features.requires_grad_(gradients)
        for layer in (*layers, spconv.SparseMaxPool3d(2)):
            with refused(f"{type(layer).__name__} 'stem': its tensors are on meta; accepted: cpu or cuda"):
                layer.name = "stem"
                layer.to("meta")(x)


@pytest.mark.parametrize("kind", ["SubMConv3d", "SparseConv3d", "SparseMaxPool3d"])
def test_coordinate_equal_to_spatial_shape(kind: str) -> None:
    x = sparse()
    x.indices[7, 2] = 8
    layer = spconv.SparseMaxPool3d(3) if "Pool" in kind else getattr(spconv, kind)(4, 4, 3)
    with refused(r"1 coords are out of range, the first in row 7: .*0 ≤ y < 8"):
        layer.eval()(x)
    with refused("row 7"):
        x.dense()
    with refused("out of range"):
        functional.sparse_add(x, sparse(seed=1))


def test_coordinates_that_are_no_integers() -> None:
    for indices in (torch.randn(5, 4), torch.zeros(5, 4, dtype=torch.int16)):
        with refused(f"indices have dtype {indices.dtype}; accepted: torch.int32"):
            spconv.SparseConvTensor(torch.zeros(5, 4), indices, [9, 9, 9], 1)


def test_duplicate_coordinates() -> None:
    x = sparse()
    x.indices[3] = x.indices[1]
    with refused("1 coords repeat an earlier row, the first: rows 1 and 3"):
        spconv.SubMConv3d(4, 4, 3).eval()(x)


# Nothing at all.


class Backbone(nn.Module):
    """The layers of a CenterPoint backbone, narrow: submanifold blocks with residuals, three strides, dense()."""

    def __init__(self) -> None:
        super().__init__()

        def block(c: int, key: str) -> nn.Module:
            return spconv.SparseSequential(spconv.SubMConv3d(c, c, 3, indice_key=key), nn.BatchNorm1d(c), nn.ReLU())

        def down(c: int, c_out: int, *geometry: Any) -> nn.Module:
            conv = spconv.SparseConv3d(c, c_out, *geometry, bias=False)
            return spconv.SparseSequential(conv, nn.BatchNorm1d(c_out), nn.ReLU())

        self.stem, self.block1 = spconv.SubMConv3d(4, 4, 3, indice_key="res1"), block(4, "res1")
        self.down2, self.block2 = down(4, 4, 3, 2, 1), block(4, "res2")
        self.down3 = down(4, 8, 3, 2, (0, 1, 1))
        self.out = down(8, 16, (3, 1, 1), (2, 1, 1))

    def forward(self, x: Any) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.block1(x)
        x = self.down2(x)
        x = self.out(self.down3(x + self.block2(x)))
        dense: torch.Tensor = x.dense()
        return dense


@pytest.mark.parametrize("training", [False, True])
def test_no_point_in_range_through_a_whole_backbone(training: bool) -> None:
    empty = torch.zeros((0, 4), dtype=torch.int32)
    net = Backbone().train(training)
    out = net(spconv.SparseConvTensor(torch.zeros(0, 4), empty, [41, 1600, 1408], 1))
    assert out.shape == (1, 16, 4, 400, 352) and not out.any()
    assert net.down2[1].num_batches_tracked == 0


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("training", [False, True])
def test_every_layer_on_nothing_and_on_one_voxel(n: int, training: bool, inference: None) -> None:
    x = sparse(n=n)
    for layer in (
        spconv.SubMConv3d(4, 4, 3),
        spconv.SubMConv3d(4, 4, 1),
        spconv.SparseConv3d(4, 4, 3, 2, 1),
        spconv.SparseConvTranspose3d(4, 4, 3, 2, 1),
        spconv.SparseMaxPool3d(3, 2, 1),
        spconv.SparseAvgPool3d(3, 2, 1),
        spconv.SparseSequential(spconv.SubMConv3d(4, 4, 3), nn.ReLU(), spconv.ToDense()),
        spconv.SparseGlobalMaxPool(),
    ):
        out = layer.train(training)(x)
        if isinstance(out, torch.Tensor):
            assert out.shape[:2] in ((2, 4),)
        else:
            assert out.features.shape[0] == out.indices.shape[0] and (out.indices.shape[0] > 0) == (n > 0)
    coarse = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="d").eval()(x)
    assert spconv.SparseInverseConv3d(4, 4, 3, "d").eval()(coarse).features.shape == (n, 4)


def test_all_outputs_vanish(inference: None) -> None:
    """A voxel that no window of a kernel of 2 with stride 3 covers."""
    x = sparse(n=1)
    x.indices[:] = torch.tensor([0, 2, 2, 2])
    out = spconv.SparseConv3d(4, 4, 2, 3).eval()(x)
    assert out.features.shape == (0, 4) and not out.dense().any()


@pytest.mark.parametrize("n", [0, 1])
def test_a_grid_too_small_for_a_kernel(n: int, inference: None) -> None:
    """Nothing, as of the functions, and of all layers behind it; and back again."""
    x = sparse(n=n)
    down = spconv.SparseConv3d(4, 8, 3, dilation=4, indice_key="down").eval()(x)
    assert down.spatial_shape == [0, 0, 1] and down.features.shape == (0, 8) and down.indices.shape == (0, 4)
    assert down.dense().shape == (2, 8, 0, 0, 1) and down.sparity == 0
    assert spconv.SubMConv3d(8, 4, 3).eval()(down).features.shape == (0, 4)
    assert spconv.SparseMaxPool3d(2).eval()(down).spatial_shape == [0, 0, 0]
    assert spconv.SparseGlobalMaxPool()(down).shape == (2, 8)
    assert torch.equal(spconv.SparseInverseConv3d(8, 4, 3, "down").eval()(down).indices, x.indices)
    up = spconv.SparseConvTranspose3d(4, 4, 2, 1, padding=9).eval()(x)
    assert up.spatial_shape == [0, 0, 0] and up.features.shape == (0, 4)


def test_no_voxel_in_a_grid_of_no_cell(inference: None) -> None:
    """As the voxels of no points are; one voxel lies outside."""
    for n in (0, 1):
        indices = torch.zeros(n, 4, dtype=torch.int32)
        x = spconv.SparseConvTensor(torch.zeros(n, 4), indices, [0, 5, 5], 1)
        for layer in (spconv.SubMConv3d(4, 4, 3), spconv.SparseConv3d(4, 4, 3, 2, 1), spconv.SparseAvgPool3d(2)):
            if n == 0:
                assert layer.eval()(x).features.shape == (0, 4)
                continue
            with refused("1 coords are out of range, the first in row 0: .*0 ≤ z < 0"):
                layer.eval()(x)


# Dtypes and numbers.


@pytest.mark.parametrize(
    ("dtype", "channels"), [(torch.float32, (1, 18)), (torch.bfloat16, (5, 100)), (torch.float16, (33, 3))]
)
def test_odd_channels(dtype: torch.dtype, channels: tuple[int, int], inference: None) -> None:
    c_in, c_out = channels
    x, layer = sparse(channels=c_in), whole(spconv.SubMConv3d(c_in, c_out, 3))
    wanted = at(dense_conv(x, layer, [1, 1, 1]), x.indices)
    out = layer.to(dtype)(x.replace_feature(x.features.to(dtype))).features
    assert torch.equal(out, wanted.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_values_stay_finite(dtype: torch.dtype, inference: None) -> None:
    """Intensities up to 255 over 128 channels: sums are taken in f32."""
    x = sparse(channels=128)
    x = x.replace_feature(torch.full((30, 128), 255.0, dtype=dtype))
    layer = spconv.SubMConv3d(128, 16, 3, bias=False).eval()
    nn.init.constant_(layer.weight, 2**-7)
    neighbours = spconv.SubMConv3d(1, 1, 3, bias=False).eval()
    nn.init.ones_(neighbours.weight)
    count = neighbours(x.replace_feature(torch.ones(30, 1))).features
    assert torch.equal(layer.to(dtype)(x).features, (255 * count).expand(-1, 16).to(dtype))


def test_f32_is_ieee_f32(inference: None) -> None:
    x = sparse(n=200, channels=32)
    x = x.replace_feature(torch.rand(200, 32, generator=torch.Generator().manual_seed(0)) * 500)
    layer = spconv.SubMConv3d(32, 8, (1, 1, 3)).eval()
    wide = torch.zeros(2, 7, 8, 9, 32, dtype=torch.float64)
    wide[tuple(x.indices.long().unbind(1))] = x.features.double()
    weight = layer.weight.double().movedim(-1, 1)
    wanted = nn.functional.conv3d(wide.movedim(-1, 1), weight, layer.bias.double(), padding=(0, 0, 1))
    torch.testing.assert_close(layer(x).features.double(), at(wanted, x.indices), rtol=2e-6, atol=2e-4)


def test_spatial_shape_does_not_change_the_result(inference: None) -> None:
    x, layer = sparse(), whole(spconv.SubMConv3d(4, 4, 3))
    larger = spconv.SparseConvTensor(x.features, x.indices, [4 * size for size in x.spatial_shape], 2)
    assert torch.equal(layer(x).features, layer(larger).features)


def test_dtypes_that_differ_or_are_unknown() -> None:
    x = sparse()
    with refused("features are torch.float32 and the weight is torch.float16; accepted: both"):
        spconv.SubMConv3d(4, 4, 3).half()(x)
    with refused("features are torch.float64"):
        spconv.SubMConv3d(4, 4, 3).double()(x.replace_feature(x.features.double()))
    with refused("SparseAvgPool3d.*features are torch.float64"):
        spconv.SparseAvgPool3d(2)(x.replace_feature(x.features.double()))


# Wrong but silent.


def test_stale_key_with_as_many_voxels(inference: None) -> None:
    """The old neighbours would be used without a word."""
    first, second = sparse(seed=1), sparse(seed=2)
    layer = spconv.SubMConv3d(4, 4, 3, indice_key="k", name="conv1").eval()
    notes = layer(first).indice_dict
    second.indice_dict = notes
    with refused("SubMConv3d 'conv1': indice_key 'k' was written by SubMConv3d 'conv1' for other voxels, .*row 0"):
        layer(second)
    equal = spconv.SparseConvTensor(first.features, first.indices.clone(), first.spatial_shape, 2, indice_dict=notes)
    assert torch.equal(layer(equal).features, layer(first).features)


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"kernel_size": 5}, r"with kernel_size \[3, 3, 3\], but here kernel_size is \[5, 5, 5\]"),
        ({"kernel_size": 3, "dilation": 2}, r"with dilation \[1, 1, 1\], but here dilation is \[2, 2, 2\]"),
    ],
)
def test_key_of_another_geometry(other: dict[str, int], match: str, inference: None) -> None:
    x = spconv.SubMConv3d(4, 4, 3, indice_key="k").eval()(sparse())
    with refused(match):
        spconv.SubMConv3d(4, 4, **other, indice_key="k").eval()(x)


def test_key_after_rows_were_dropped(inference: None) -> None:
    x = spconv.SubMConv3d(4, 4, 3, indice_key="k").eval()(sparse())
    fewer = spconv.SparseConvTensor(x.features[:9], x.indices[:9], x.spatial_shape, 2, indice_dict=x.indice_dict)
    with refused("for 30 voxels, but here are 9"):
        spconv.SubMConv3d(4, 4, 3, indice_key="k").eval()(fewer)
    assert x.select_by_index(torch.arange(9)).indice_dict == {}


def test_key_written_twice(inference: None) -> None:
    x = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="k").eval()(sparse())
    for layer in (spconv.SparseConv3d(4, 4, 3, indice_key="k"), spconv.SparseMaxPool3d(2, indice_key="k")):
        with refused("indice_key 'k' is already written by SparseConv3d"):
            layer.eval()(x)
    with refused("'k' was written by SparseConv3d.*, which is not submanifold"):
        spconv.SubMConv3d(4, 4, 3, indice_key="k").eval()(x)


def test_inverse_of_a_layer_without_key(inference: None) -> None:
    x = spconv.SubMConv3d(4, 4, 3, indice_key="subm1").eval()(sparse())
    x = spconv.SparseConv3d(4, 4, 3, 2, 1).eval()(x)
    with refused("no layer has written indice_key 'down1'; keys that were: 'subm1'"):
        spconv.SparseInverseConv3d(4, 4, 3, "down1").eval()(x)
    with refused("'subm1' was written by SubMConv3d.*, which is submanifold"):
        spconv.SparseInverseConv3d(4, 4, 3, "subm1").eval()(x)


def test_inverse_at_the_wrong_level(inference: None) -> None:
    x = sparse()
    x = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="down1").eval()(x)
    y = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="down2").eval()(x)
    with refused(r"with spatial_shape \[4, 4, 5\], but here spatial_shape is \[2, 2, 3\]"):
        spconv.SparseInverseConv3d(4, 4, 3, "down1").eval()(y)
    with refused(r"with kernel_size \[3, 3, 3\], but here kernel_size is \[2, 2, 2\]"):
        spconv.SparseInverseConv3d(4, 4, 2, "down2").eval()(y)


def test_batch_column_last() -> None:
    x = sparse()
    with refused(r"out of range.*0 ≤ batch < 2"):
        spconv.SubMConv3d(4, 4, 3).eval()(
            spconv.SparseConvTensor(x.features, x.indices[:, [1, 2, 3, 0]].contiguous(), x.spatial_shape, 2)
        )


def test_axes_of_the_shape_in_another_order() -> None:
    x = sparse(n=200)
    with refused("out of range"):
        spconv.SubMConv3d(4, 4, 3).eval()(spconv.SparseConvTensor(x.features, x.indices, [9, 8, 7], 2))


def test_two_strided_layers_on_one_tensor(inference: None) -> None:
    x = sparse()
    features, indices = x.features.clone(), x.indices.clone()
    one, other = (spconv.SparseConv3d(4, 4, 3, 2, 1).eval()(x) for _ in range(2))
    assert torch.equal(one.indices, other.indices) and (one + other).features.shape == one.features.shape
    assert torch.equal(x.features, features) and torch.equal(x.indices, indices)


def test_negative_coordinates(inference: None) -> None:
    """Without a spatial_shape the grid has no edge and division rounds down: a shift by strides changes nothing."""
    x = sparse(n=100)
    shifted = x.indices - torch.tensor([0, 50, 50, 50], dtype=torch.int32)
    subm, down = whole(spconv.SubMConv3d(4, 4, 3)), whole(spconv.SparseConv3d(4, 4, 2, 2))
    free = spconv.SparseConvTensor(x.features, shifted, None, 2)
    assert torch.equal(subm(free).features, subm(x).features)
    here, there = down(spconv.SparseConvTensor(x.features, x.indices, None, 2)), down(free)
    assert torch.equal(there.features, here.features) and there.spatial_shape is None
    assert torch.equal(there.indices, here.indices - torch.tensor([0, 25, 25, 25], dtype=torch.int32))
    with refused(r"dense\(\) of a SparseConvTensor without spatial_shape"):
        there.dense()
    with refused("out of range"):
        subm(spconv.SparseConvTensor(x.features, shifted, x.spatial_shape, 2))


def test_one_tap_onto_given_coordinates(inference: None) -> None:
    x, wanted = sparse(), sparse(seed=1, n=50)
    onto = torch.cat([x.indices[::2], wanted.indices]).unique(dim=0)
    weight = torch.eye(4).view(4, 1, 1, 1, 4)
    ones = [1, 1, 1]
    out = ops.sparse_conv3d(x.features, x.indices, onto, weight, None, ones, [0, 0, 0], ones, False, "none")
    assert torch.equal(out, at(x.dense(), onto))


def test_rows_of_features_and_indices_differ() -> None:
    with refused("features have 10 rows but indices have 9"):
        spconv.SparseConvTensor(torch.zeros(10, 4), torch.zeros(9, 4, dtype=torch.int32), [9, 9, 9], 1)
    with refused("features have 5 rows but indices have 30"):
        sparse().replace_feature(torch.zeros(5, 4))


def test_sum_of_different_voxels() -> None:
    with refused("operands of . have different indices; .*sparse_add"):
        sparse(seed=1) + sparse(seed=2)
    with refused("30 and 9 rows of different indices"):
        sparse() + sparse(n=9)
    with refused("AddTable.*different indices"):
        spconv.AddTable()([sparse(seed=1), sparse(seed=2)])


def test_changed_in_place(inference: None) -> None:
    """Maps belong to contents: writing to coordinates, even past torch's version counter, is noticed."""
    x, layer = sparse(), whole(spconv.SubMConv3d(4, 4, 3))
    layer(x)
    x.indices.numpy()[:, 0] = 1 - x.indices.numpy()[:, 0]
    x.indices.numpy()[0, 1:] = [6, 7, 8]
    if (x.indices[1:] == x.indices[0]).all(1).any():
        x.indices.numpy()[0, 0] = 1 - x.indices.numpy()[0, 0]
    assert torch.equal(layer(x).features, at(dense_conv(x, layer, [1, 1, 1]), x.indices))


# Checkpoints.


def test_one_tap_weights_of_spconv_2_1_and_2_2(inference: None) -> None:
    """2.1 multiplies by the transpose, 2.2 and later read the memory anew: the default is 2.2's, and 2.1's converts."""
    x, layer = sparse(channels=32), whole(spconv.SubMConv3d(32, 64, 1, bias=False))
    trained = layer.weight.clone()
    assert torch.equal(layer(x).features, x.features @ trained.view(32, 64))
    layer.load_state_dict({"weight": convert.from_spconv21(layer, trained)})
    assert torch.equal(layer(x).features, x.features @ trained.view(64, 32).T)


def test_checkpoint_of_another_layout() -> None:
    layer = spconv.SparseConv3d(4, 8, 3)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        layer.load_state_dict({"weight": torch.zeros(3, 3, 3, 4, 8), "bias": torch.zeros(8)})
