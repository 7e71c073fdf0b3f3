"""Elementwise kernels on rows of channels: filling with a bias or zeros, and the epilogue."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from spconv_compiler.bindings import ir
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


def apply_epilogue(channels: int, activation: str, element: ir.Type, lanes: int) -> Callable[..., None]:
    """Body(sums f32, out, rows): out = activation(sums), rounded to `element`."""
    run = width(channels)

    def body(sums: V, out: V, rows: V) -> None:
        with _vector(rows, channels, lanes) as number:
            at = times(number, run)
            value = load(sums, at, run)
            if activation == "relu":
                # Not a maximum: NaN is not below zero, so it passes through.
                value = (value < 0).select(const(0, value.type), value)
            store(value.to(vec(run, element) if run > 1 else element), out, at)

    return body


@contextlib.contextmanager
def _vector(rows: V, channels: int, lanes: int) -> Iterator[V]:
    """The number of this lane's vector; the body is built inside the check that it exists."""
    number = plus(times(block(), lanes), thread())
    with if_(number < times(rows, channels // width(channels))):
        yield number
