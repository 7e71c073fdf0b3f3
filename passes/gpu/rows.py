"""Elementwise kernels on rows of channels: filling with a bias or zeros, and the epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.lanes import block, load, plus, store, thread, times
from spconv_compiler.passes.kernel_builder import V, const, f32, if_, vec

# Vectors that one lane handles, a workgroup's width apart.
_TURNS = 4


def width(channels: int) -> int:
    """Channels that one lane moves at once: 16 bytes of f32 where rows allow it."""
    return math.gcd(channels, 4)


def span(channels: int, lanes: int) -> int:
    """Elements that one workgroup covers."""
    return width(channels) * lanes * _TURNS


def fill_rows(channels: int, lanes: int, *, bias: bool) -> Callable[..., None]:
    """Body(out, rows) or body(out, bias, rows): every row the bias [channels], or zeros."""
    run = width(channels)

    def body(out: V, *arguments: V) -> None:
        *biases, rows = arguments
        zero = const(0, vec(run, f32()) if run > 1 else f32())
        for number in _vectors(rows, channels, lanes):
            at = times(number, run)
            store(load(biases[0], at % channels, run) if bias else zero, out, at)

    return body


def apply_epilogue(channels: int, activation: str, element: ir.Type, lanes: int) -> Callable[..., None]:
    """Body(sums f32, out, rows): out = activation(sums), rounded to `element`."""
    run = width(channels)

    def body(sums: V, out: V, rows: V) -> None:
        for number in _vectors(rows, channels, lanes):
            at = times(number, run)
            value = load(sums, at, run)
            if activation == "relu":
                # Not a maximum: NaN is not below zero, so it passes through.
                value = (value < 0).select(const(0, value.type), value)
            store(value.to(vec(run, element) if run > 1 else element), out, at)

    return body


def _vectors(rows: V, channels: int, lanes: int) -> Iterator[V]:
    """Numbers of this lane's vectors; the body of the caller's loop is built inside the check that it exists."""
    total = times(rows, channels // width(channels))
    first = plus(times(block(), lanes * _TURNS), thread())
    for turn in range(_TURNS):
        number = plus(first, turn * lanes)
        with if_(number < total):
            yield number
