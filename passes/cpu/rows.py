"""Elementwise work on rows: residual, activation, rounding; scale and shift; channels side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from spconv_compiler.bindings import ir
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.activation import activate
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.rounding import narrow, widen
from spconv_compiler.passes.kernel_builder import V, const, f32, fma, for_, gep, i64, load, store, vec

# Elements that a worker takes at once, and for how many a worker is worth its thread.
_SPAN = 1 << 14
_GRAIN = 1 << 20


def finish(total: V, residual: V | None, epilogue: Epilogue, element: ir.Type) -> V:
    """The end of a sum in f32, scalar or vector: residual added, activation applied, rounded to `element`."""
    return narrow(activate(total if residual is None else total + widen(residual), epilogue), element)


@dataclasses.dataclass(frozen=True)
class ApplyEpilogue:
    """Body of the epilogue kernel.

    Arguments: sums [rows, channels]; residual [rows, channels] if it has a type; out [rows, channels]; rows; threads.
    """

    functions: Functions
    name: str
    channels: int
    source: ir.Type
    residual: ir.Type | None
    element: ir.Type
    epilogue: Epilogue

    def __call__(self, *arguments: V) -> None:
        *arrays, rows, threads = arguments
        count = rows * self.channels
        spans = (count + (_SPAN - 1)) // _SPAN
        workers = worth_workers(threads, count, _GRAIN)
        parallel_for(self.functions, self.name, spans, workers, [*arrays, count], self._span)

    def _span(self, span: V, worker: V, *arguments: V) -> None:
        sums, *residuals, out, count = arguments
        lanes = self.functions.target.lanes
        first = span * _SPAN
        size = (count - first).min(_SPAN)
        source, target = gep(sums, first, self.source), gep(out, first, self.element)
        added = [(gep(residual, first, self.residual), self.residual) for residual in residuals]

        def step(index: V, wide: Callable[[ir.Type], ir.Type]) -> None:
            value = widen(load(source, wide(self.source), index))
            more = [load(address, wide(type_), index) for address, type_ in added]
            store(finish(value, more[0] if more else None, self.epilogue, self.element), target, index)

        whole = size // lanes * lanes
        with for_(0, whole, lanes, unroll=False) as loop:
            step(loop.iv, lambda type_: vec(lanes, type_))
        with for_(whole, size, 1, unroll=False) as loop:
            step(loop.iv, lambda type_: type_)


@dataclasses.dataclass(frozen=True)
class Affine:
    """Body of the affine kernel. Arguments: features and out [rows, channels]; scale, shift f32 [channels]."""

    functions: Functions
    name: str
    channels: int
    source: ir.Type
    element: ir.Type

    def __call__(self, features: V, scale: V, shift: V, out: V, rows: V, threads: V) -> None:
        workers = worth_workers(threads, rows * self.channels, _GRAIN)
        shared = [features, scale, shift, out, rows]
        span = max(_SPAN // self.channels, 1)
        parallel_for(self.functions, self.name, (rows + (span - 1)) // span, workers, shared, self._span)

    def _span(self, span: V, worker: V, features: V, scale: V, shift: V, out: V, rows: V) -> None:
        size = max(_SPAN // self.channels, 1)
        first = span * size
        with for_(first, (first + size).min(rows), 1, unroll=False) as row:
            source = gep(features, row.iv * self.channels, self.source)
            target = gep(out, row.iv * self.channels, self.element)

            self._row(source, target, scale, shift)

    def _row(self, source: V, target: V, scale: V, shift: V) -> None:
        def step(index: V | int, wide: Callable[[ir.Type], ir.Type]) -> None:
            value = widen(load(source, wide(self.source), index))
            factor, term = (load(vector, wide(f32()), index) for vector in (scale, shift))
            store(narrow(fma(value, factor, term), self.element), target, index)

        lanes = self.functions.target.lanes
        whole = self.channels // lanes * lanes
        if whole:
            with for_(0, const(whole, i64()), lanes, unroll=False) as loop:
                step(loop.iv, lambda type_: vec(lanes, type_))
        for channel in range(whole, self.channels):
            step(channel, lambda type_: type_)


@dataclasses.dataclass(frozen=True)
class Concat:
    """Body of the concat kernel. Arguments: first [rows, widths[0]]; second [rows, widths[1]]; out; rows; threads."""

    functions: Functions
    name: str
    widths: tuple[int, int]
    element: ir.Type

    def __call__(self, first: V, second: V, out: V, rows: V, threads: V) -> None:
        span = max(_SPAN // sum(self.widths), 1)
        workers = worth_workers(threads, rows * sum(self.widths), _GRAIN)
        shared = [first, second, out, rows]
        parallel_for(self.functions, self.name, (rows + (span - 1)) // span, workers, shared, self._span)

    def _span(self, span: V, worker: V, first: V, second: V, out: V, rows: V) -> None:
        size = max(_SPAN // sum(self.widths), 1)
        start = span * size
        with for_(start, (start + size).min(rows), 1, unroll=False) as row:
            target = gep(out, row.iv * sum(self.widths), self.element)
            for part, (source, width) in enumerate(zip((first, second), self.widths, strict=True)):
                here = gep(source, row.iv * width, self.element)
                self._copy(here, gep(target, part * self.widths[0], self.element), width)

    def _copy(self, source: V, target: V, width: int) -> None:
        lanes = self.functions.target.lanes
        whole = width // lanes * lanes
        if whole:
            with for_(0, const(whole, i64()), lanes, unroll=False) as loop:
                store(load(source, vec(lanes, self.element), loop.iv), target, loop.iv)
        for channel in range(whole, width):
            store(load(source, self.element, channel), target, channel)
