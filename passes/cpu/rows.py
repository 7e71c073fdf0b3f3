"""Elementwise work on rows: activation and rounding."""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.rounding import narrow
from spconv_compiler.passes.kernel_builder import V, f32, for_, gep, load, store, vec

# Elements that a worker takes at once, and for how many a worker is worth its thread.
_SPAN = 1 << 14
_GRAIN = 1 << 20


def activate(value: V, activation: str) -> V:
    """`activation` ("none" or "relu") of f32, scalar or vector; NaN is not below zero and stays."""
    return value if activation == "none" else (value < 0.0).select(0.0, value)


@dataclasses.dataclass(frozen=True)
class ApplyEpilogue:
    """Body of the epilogue kernel. Arguments: sums f32 [rows, channels]; out [rows, channels]; rows; threads."""

    functions: Functions
    name: str
    channels: int
    element: ir.Type
    activation: str

    def __call__(self, sums: V, out: V, rows: V, threads: V) -> None:
        count = rows * self.channels
        spans = (count + (_SPAN - 1)) // _SPAN
        workers = worth_workers(threads, count, _GRAIN)
        parallel_for(self.functions, self.name, spans, workers, [sums, out, count], self._span)

    def _span(self, span: V, worker: V, sums: V, out: V, count: V) -> None:
        lanes = self.functions.target.lanes
        first = span * _SPAN
        size = (count - first).min(_SPAN)
        source, target = gep(sums, first, f32()), gep(out, first, self.element)
        whole = size // lanes * lanes
        with for_(0, whole, lanes, unroll=False) as loop:
            value = load(source, vec(lanes, f32()), loop.iv)
            store(narrow(activate(value, self.activation), self.element), target, loop.iv)
        with for_(whole, size, 1, unroll=False) as loop:
            value = load(source, f32(), loop.iv)
            store(narrow(activate(value, self.activation), self.element), target, loop.iv)
