"""Sums that several workgroups made of one output row, added up: the end of a gemm that is split over taps."""

from __future__ import annotations

from collections.abc import Callable

from spconv_compiler.bindings import ir
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.gpu.epilogue import finish
from spconv_compiler.passes.gpu.lanes import block, load, plus, store, thread, times
from spconv_compiler.passes.gpu.rows import width
from spconv_compiler.passes.kernel_builder import V, if_


def add_parts(
    channels: int, parts: int, epilogue: Epilogue, element: ir.Type, lanes: int, *, bias: bool, residual: bool
) -> Callable[..., None]:
    """Body(sums, [bias,] [residual,] out, rows): out = finish(bias + Σ sums[part]), parts in ascending order.

    sums: f32 [parts][rows][channels].
    """
    run = width(channels)

    def body(sums: V, *arguments: V) -> None:
        *others, out, rows = arguments
        number = plus(times(block(), lanes), thread())
        with if_(number < times(rows, channels // run)):
            at = times(number, run)
            total = load(sums, at, run)
            for part in range(1, parts):
                total = total + load(sums, plus(times(times(rows, channels), part), at), run)
            if bias:
                total = total + load(others[0], at % channels, run)
            added = load(others[-1], at, run) if residual else None
            store(finish(total, added, epilogue, element), out, at)

    return body
