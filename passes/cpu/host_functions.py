"""Functions that the driver calls beside the plan: the box of coordinates, checksums, and a list of calls."""

from __future__ import annotations

from spconv_compiler.passes.cpu.fingerprint import define_fingerprints
from spconv_compiler.passes.cpu.functions import Functions, call, pointer
from spconv_compiler.passes.cpu.memory import load_pointer
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i32, i64, if_else, load, store, vec, while_
from spconv_compiler.runtime.calls_list import CALL_ARGUMENTS, CALL_WORDS


def define_host_functions(functions: Functions) -> None:
    """Adds `coords_bounds(coords, rows, out)`, `run_calls(calls, count)`, and checksums (fingerprint.py).

    coords_bounds writes the least and then the greatest (batch, z, y, x) of int32 coords [rows, 4] to out i32 [8].
    run_calls makes one call after another, as calls i64 [count, CALL_WORDS] say: a function's address, 0 for none, and
    its arguments, addresses and numbers alike. It stops at a result that is not 0, writes that into the call's last
    word, and gives the number of calls before it.
    """
    functions.kernel("coords_bounds", (pointer(), i64(), pointer()), _bounds)
    functions.kernel("run_calls", (pointer(), i64()), _run_calls)
    define_fingerprints(functions)


def _run_calls(calls: V, count: V) -> V:
    def going(number: V, result: V) -> tuple[V, list[V]]:
        # A function that takes fewer arguments leaves the others alone.
        return (number < count) & result.eq(0), [number, result]

    def call_one(number: V, result: V) -> list[V]:
        record = gep(calls, number * CALL_WORDS, i64())
        function = load(record, i64())

        def run() -> list[V]:
            arguments = [load(record, i64(), 1 + place) for place in range(CALL_ARGUMENTS)]
            given = call(load_pointer(record), arguments, i64())
            store(given, record, CALL_WORDS - 1)
            return [given]

        (given,) = if_else(function.eq(0), lambda: [const(0, i64())], run)
        return [number + given.eq(0).to(i64()), given]

    return while_([const(0, i64()), const(0, i64())], going, call_one)[0]


def _bounds(coords: V, rows: V, out: V) -> None:
    row_type = vec(4, i32())
    init = [const((1 << 31) - 1, row_type), const(-(1 << 31), row_type)]
    with for_(0, rows, 1, init, unroll=False) as loop:
        low, high = loop.args
        row = load(coords, row_type, loop.iv * 4)
        loop.yields(low.min(row), high.max(row))
    for place, value in enumerate(loop.results):
        store(value, out, place * 4)
