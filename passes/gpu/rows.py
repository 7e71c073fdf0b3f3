"""Elementwise kernels on rows of channels: filling with a bias or zeros, and the epilogue."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from spconv_compiler.bindings import ir
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.gpu.epilogue import finish
from spconv_compiler.passes.gpu.lanes import block, load, plus, store, thread, times
from spconv_compiler.passes.kernel_builder import V, const, f32, if_, vec


def width(channels: int) -> int:
    """Channels that one lane moves at once: 16 bytes of f32 where rows allow it."""
    return math.gcd(channels, 4)


def span(channels: int, lanes: int) -> int:
    """Elements that one workgroup covers."""
    return width(channels) * lanes


def fill_rows(channels: int, lanes: int, *, bias: bool) -> Callable[..., None]:
    """Body(out, rows) or body(out, bias, rows): every row the bias [channels], or zeros."""
    run = width(channels)

    def body(out: V, *arguments: V) -> None:
        *biases, rows = arguments
        zero = const(0, vec(run, f32()) if run > 1 else f32())
        with _vector(rows, channels, lanes) as number:
            at = times(number, run)
            store(load(biases[0], at % channels, run) if bias else zero, out, at)

    return body


def apply_epilogue(
    channels: int, epilogue: Epilogue, source: ir.Type, element: ir.Type, lanes: int, *, residual: bool
) -> Callable[..., None]:
    """Body(sums, out, rows) or body(sums, residual, out, rows): see epilogue.finish."""
    run = width(channels)

    def body(sums: V, *arguments: V) -> None:
        *residuals, out, rows = arguments
        assert len(residuals) == residual
        with _vector(rows, channels, lanes) as number:
            at = times(number, run)
            added = load(residuals[0], at, run) if residuals else None
            total = load(sums, at, run)
            if source != f32():
                total = total.to(vec(run, f32()) if run > 1 else f32())
            store(finish(total, added, epilogue, element), out, at)

    return body


@contextlib.contextmanager
def _vector(rows: V, channels: int, lanes: int) -> Iterator[V]:
    """The number of this lane's vector; the body is built inside the check that it exists."""
    number = plus(times(block(), lanes), thread())
    with if_(number < times(rows, channels // width(channels))):
        yield number
