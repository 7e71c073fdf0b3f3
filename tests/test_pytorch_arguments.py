"""Arguments of the modules that are refused, and gradients, of which there are none yet but that of dense()."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_cases import at, sparse

import spconv_compiler.pytorch as spconv
from spconv_compiler.errors import InputError, SpconvError


def refused(match: str) -> Any:
    return pytest.raises(InputError, match=match)


@pytest.mark.parametrize("training", [False, True])
def test_gradients_are_refused_not_lost(training: bool) -> None:
    layers = (
        spconv.SubMConv3d(4, 4, 3),
        spconv.SparseConv3d(4, 4, 3, 2, 1),
        spconv.SparseAvgPool3d(2),
    )
    for layer in layers:
        x = sparse()
        x = x.replace_feature(x.features.requires_grad_())
        out = layer.train(training)(x).features
        assert out.requires_grad
        with pytest.raises(SpconvError, match="has no backward pass in this version; run it under torch.no_grad"):
            out.sum().backward()


def test_gradient_of_dense() -> None:
    x = sparse()
    x = x.replace_feature(x.features.requires_grad_())
    volume = torch.rand(2, 4, *x.spatial_shape)
    (x.dense() * volume).sum().backward()
    assert torch.equal(x.features.grad, at(volume, x.indices))


def test_arguments_that_are_not_accepted() -> None:
    for arguments, match in (
        ({"groups": 2}, "groups is 2; accepted: 1"),
        ({"kernel_size": 2}, "odd sizes, in a submanifold"),
        ({"kernel_size": (3, 3)}, r"\[3, 3\] has 2 values; accepted: one number, or 3"),
        ({"dilation": 0}, "dilation is .*at least 1"),
        ({"in_channels": 0}, "at least 1 each"),
    ):
        with refused(match):
            spconv.SubMConv3d(**{"in_channels": 4, "out_channels": 4, "kernel_size": 3, **arguments})
    with refused("0 for a kernel of one tap with stride 1"):
        spconv.SparseConv3d(4, 4, 1, padding=1)
    with refused("SubMConv3d.*is given a Tensor; accepted: a SparseConvTensor"):
        spconv.SubMConv3d(4, 4, 3)(torch.zeros(1, 4, 9, 9, 9))
    with refused("features have 5 channels; accepted: in_channels=4"):
        spconv.SubMConv3d(4, 4, 3)(sparse(channels=5))
    with refused("in training; accepted: eval"):
        spconv.SparseConvolution(3, 4, 4, 3, subm=True, act_type="relu")(sparse())
    for shape, batch in (([9, 9], 1), ([9, 9, -1], 1), ([9, 9, 9], 0)):
        with refused("spatial_shape is|batch_size is"):
            spconv.SparseConvTensor(torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.int32), shape, batch)
    x = sparse()
    with refused("accepted: x = x.replace_feature"):
        x.features = x.features
    with refused("accepted: x = x . other"):
        x += x


@pytest.mark.parametrize("value", [True, np.True_, torch.tensor(True), [3, True, 3], np.array([True] * 3)], ids=repr)
def test_truth_values_are_no_sizes(value: Any) -> None:
    for name in ("kernel_size", "stride", "padding", "dilation"):
        for build in (spconv.SparseConv3d, spconv.SparseMaxPool3d):
            channels = (4, 4) if build is spconv.SparseConv3d else ()
            with refused(f"^{build.__name__}: {name} is .*True.*; accepted: an int"):
                build(*channels, **{"kernel_size": 3, name: value})


def test_numbers_that_are_not_whole() -> None:
    tensors = torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.int32)
    for build, match in (
        (lambda: spconv.SubMConv3d(True, 4, 3), "SubMConv3d: in_channels is True"),
        (lambda: spconv.SubMConv3d(4, 4, 3, groups=True), "SubMConv3d: groups is True"),
        (lambda: spconv.SubMConv3d(4, 4, 2.5), "SubMConv3d: kernel_size is 2.5"),
        (lambda: spconv.SubMConv3d(4, 4, [3, 2.5, 3]), "SubMConv3d: kernel_size is 2.5"),
        (lambda: spconv.SubMConv3d(4, 4, "same"), "SubMConv3d: kernel_size is 's'"),
        (lambda: spconv.SparseConvTensor(*tensors, [4, 4, True], 1), "a size of spatial_shape is True"),
        (lambda: spconv.SparseConvTensor(*tensors, [4, 4, 4], True), "batch_size is True"),
    ):
        with refused(f"^{match}; accepted: an int"):
            build()
    with refused("has True spatial axes"):
        spconv.SparseMaxPool(True, 2)
    sizes = spconv.SparseConv3d(4.0, np.int64(4), torch.tensor(3), np.array([1, 2, 2]))
    assert (sizes.in_channels, sizes.kernel_size, sizes.stride) == (4, [3, 3, 3], [1, 2, 2])


def test_four_spatial_axes() -> None:
    """Frameworks import these names and register them; whoever builds one is told."""
    kinds = ["SubMConv4d", "SparseConv4d", "SparseConvTranspose4d"]
    for build in (
        *(lambda kind=kind: getattr(spconv, kind)(3, 4, 3) for kind in kinds),
        lambda: spconv.SparseInverseConv4d(3, 4, 3, "key"),
        lambda: spconv.SparseMaxPool4d(2),
        lambda: spconv.SparseConvolution(4, 3, 4),
    ):
        with pytest.raises(InputError, match="^S[A-Za-z]+(4d|tion) has 4 spatial axes; accepted: 1, 2 or 3"):
            build()
    with pytest.raises(InputError, match="has 0 spatial axes"):
        spconv.SparseAvgPool(0, 2)


def test_layers_are_found_where_spconv_has_them() -> None:
    conv = importlib.import_module("spconv_compiler.pytorch.conv")
    for name in ("SubMConv3d", "SparseConv2d", "SparseInverseConv1d", "SparseConvTranspose3d", "SparseConvolution"):
        assert getattr(conv, name) is getattr(spconv, name)
    for name in ("given", "SparseConv5d", "_SubMConv"):
        with pytest.raises(AttributeError, match=f"'spconv_compiler.pytorch.conv' has no attribute '{name}'"):
            getattr(conv, name)
