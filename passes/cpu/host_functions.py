"""Functions that the driver calls beside the plan: the box of coordinates, checksums, and a list of calls."""

from __future__ import annotations

from spconv_compiler.passes.cpu.fingerprint import define_fingerprints, fingerprint_while
from spconv_compiler.passes.cpu.functions import Functions, call, pointer
from spconv_compiler.passes.cpu.memory import load_pointer, stack_array
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i32, i64, if_else, load, store, vec, while_
from spconv_compiler.runtime.calls_list import CALL_ARGUMENTS, CALL_WORDS

# The least of no rows, and the greatest.
_ENDS = ((1 << 31) - 1, -(1 << 31))
_ROW_BYTES = 16


def define_host_functions(functions: Functions) -> None:
    """Adds `coords_bounds(coords, rows, out)`, `coords_seen(coords, rows, out)`, `run_calls(calls, count)`, and
    checksums (fingerprint.py).

    coords_bounds writes the least and then the greatest (batch, z, y, x) of int32 coords [rows, 4] to out i32 [8].
    coords_seen does too, and gives the rows' fingerprint: both are made of one read of memory.
    run_calls makes one call after another, as calls i64 [count, CALL_WORDS] say: a function's address, 0 for none, and
    its arguments, addresses and numbers alike. It stops at a result that is not 0, writes that into the call's last
    word, and gives the number of calls before it.
    """
    functions.kernel("coords_bounds", (pointer(), i64(), pointer()), _bounds)
    functions.kernel("coords_seen", (pointer(), i64(), pointer()), _seen)
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
    _bounds_from(coords, const(0, i64()), rows, [const(end, vec(4, i32())) for end in _ENDS], out)


def _seen(coords: V, rows: V, out: V) -> V:
    both, ends = vec(8, i32()), stack_array(16, i32())

    def look(found: list[V], vectors: list[V]) -> list[V]:
        low, high = found
        for taken in vectors:
            low, high = low.min(taken), high.max(taken)
        return [low, high]

    init = [const(end, both) for end in _ENDS]
    fingerprint, found, end = fingerprint_while(coords, rows * _ROW_BYTES, init, look)
    # A vector is of two rows.
    for place, value in enumerate(found):
        store(value, ends, place * 8)
    low, other_low, high, other_high = (load(ends, vec(4, i32()), place) for place in range(0, 16, 4))
    _bounds_from(coords, end // _ROW_BYTES, rows, [low.min(other_low), high.max(other_high)], out)
    return fingerprint


def _bounds_from(coords: V, first: V, rows: V, init: list[V], out: V) -> None:
    with for_(first, rows, 1, init, unroll=False) as loop:
        low, high = loop.args
        row = load(coords, vec(4, i32()), loop.iv * 4)
        loop.yields(low.min(row), high.max(row))
    for place, value in enumerate(loop.results):
        store(value, out, place * 4)
