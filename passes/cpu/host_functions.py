"""Functions that the driver calls beside the plan: the box of coordinates, a checksum, and a list of calls."""

from __future__ import annotations

from spconv_compiler.passes.cpu.functions import Functions, call, pointer
from spconv_compiler.passes.cpu.memory import i8, load_pointer
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i32, i64, if_else, load, store, vec, while_
from spconv_compiler.runtime.calls_list import CALL_ARGUMENTS, CALL_WORDS

# Words mixed side by side: enough chains to hide the latency of a multiplication.
_WORDS, _CHAINS = 8, 4
_STRIDE = 4 * _WORDS * _CHAINS
# Odd, so that multiplication loses nothing; the second is 2^64 divided by the golden ratio.
_ODD_32 = 0x2C1B3C6D
_ODD_64 = -7046029254386353131
# One odd multiplier for each chain, from the digits of pi; with the flip each gives a second one.
_FINISH = (0x243F6A89, 0x05A308D3, 0x13198A2F, 0x03707345)
_FLIP = 0x5A5A5A5A


def define_host_functions(functions: Functions) -> None:
    """Adds `coords_bounds(coords, rows, out)`, `fingerprint(memory, bytes)` and `run_calls(calls, count)`.

    coords_bounds writes the least and then the greatest (batch, z, y, x) of int32 coords [rows, 4] to out i32 [8].
    fingerprint gives 64 bits: any change of one 4-byte word changes them, others do but for one case in 2^32.
    run_calls makes one call after another, as calls i64 [count, CALL_WORDS] say: a function's address, 0 for none, and
    its arguments, addresses and numbers alike. It stops at a result that is not 0, writes that into the call's last
    word, and gives the number of calls before it.
    """
    functions.kernel("coords_bounds", (pointer(), i64(), pointer()), _bounds)
    functions.kernel("fingerprint", (pointer(), i64()), _fingerprint)
    functions.kernel("run_calls", (pointer(), i64()), _run_calls)


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


def _fingerprint(memory: V, size: V) -> V:
    word = vec(_WORDS, i32())
    strides = size // _STRIDE
    init = [const(chain + 1, word) for chain in range(_CHAINS)]
    with for_(0, strides, 1, init, unroll=False) as loop:
        mixed = []
        for chain, state in enumerate(loop.args):
            taken = load(memory, word, (loop.iv * _CHAINS + chain) * _WORDS)
            mixed.append(_mix(state, taken))
        loop.yields(*mixed)
    whole, *others = (_finish(state, chain) for chain, state in enumerate(loop.results))
    for state in others:
        whole = _mix(whole, state)
    halves, total = whole.bitcast(vec(_WORDS // 2, i64())), size
    for lane in range(_WORDS // 2):
        total = _fold(total, halves.lane(lane))
    with for_(strides * _STRIDE, size, 1, [total], unroll=False) as rest:
        byte = load(memory, i8(), rest.iv).to(i64())
        rest.yields(_fold(rest.args[0], byte))
    return rest.results[0]


def _mix(state: V, words: V) -> V:
    product = (state ^ words) * _ODD_32
    # Without the shift, two changes of top bits would cancel: a change of sign in two floats.
    return product ^ (product >> 15)


def _finish(state: V, chain: int) -> V:
    """Scrambles a chain in a way of its own (the finaliser of MurmurHash3, with a multiplier for each chain).

    The last words of two chains are only one multiplication away from here: equal changes in both, such as two
    changes of sign, would cancel when the chains are put together.
    """
    first = (state ^ (state >> 16)) * _FINISH[chain]
    second = (first ^ (first >> 13)) * (_FINISH[chain] ^ _FLIP)
    return second ^ (second >> 16)


def _fold(total: V, value: V) -> V:
    product = (total ^ value) * _ODD_64
    return product ^ (product >> 32)
