"""Spatial shapes of results, as spconv 2.x computes them; sizes may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spconv_compiler.errors import InputError


class Described(Protocol):
    """A layer that messages can name."""

    def describe(self) -> str:
        """The layer, for messages."""


def conv_output_size(
    layer: Described,
    shape: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """(n + 2·padding − dilation·(k − 1) − 1) // stride + 1 per axis.

    Raises:
        InputError: an axis has no room for the kernel.
    """
    axes = zip(shape, kernel_size, stride, padding, dilation, strict=True)
    return _positive(layer, shape, [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes])


def transposed_output_size(
    layer: Described,
    shape: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """(n − 1)·stride − 2·padding + k + output_padding per axis; dilation does not count, as in spconv.

    Raises:
        InputError: nothing is left of an axis.
    """
    axes = zip(shape, kernel_size, stride, padding, output_padding, strict=True)
    return _positive(layer, shape, [(n - 1) * s - 2 * p + k + extra for n, k, s, p, extra in axes])


def _positive(layer: Described, shape: Sequence[int], found: list[int]) -> list[int]:
    if min(found) < 1:
        raise InputError(
            f"{layer.describe()}: spatial_shape {list(shape)} becomes {found}; accepted: room for at least one output "
            "along every axis"
        )
    return found
