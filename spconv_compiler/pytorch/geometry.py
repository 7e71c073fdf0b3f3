"""Spatial shapes of results, as spconv 2.x computes them; sizes may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence


def conv_output_size(
    shape: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """(n + 2·padding − dilation·(k − 1) − 1) // stride + 1 per axis; 0 of one that has no room for the kernel."""
    axes = zip(shape, kernel_size, stride, padding, dilation, strict=True)
    return _from_zero([(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes])


def transposed_output_size(
    shape: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """(n − 1)·stride − 2·padding + k + output_padding per axis, or 0; dilation does not count, as in spconv."""
    axes = zip(shape, kernel_size, stride, padding, output_padding, strict=True)
    return _from_zero([(n - 1) * s - 2 * p + k + extra for n, k, s, p, extra in axes])


def _from_zero(found: list[int]) -> list[int]:
    # Asked first: of a symbolic size a maximum is more than a trace has to carry.
    return found if min(found) >= 0 else [max(size, 0) for size in found]
