"""Functions that the driver calls beside the plan: the box of coordinates and a checksum of memory."""

from __future__ import annotations

from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.memory import i8
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, load, store, vec

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
    """Adds `coords_bounds(coords, rows, out)` and `fingerprint(memory, bytes)` to the module.

    coords_bounds writes the least and then the greatest (batch, z, y, x) of int32 coords [rows, 4] to out i32 [8].
    fingerprint gives 64 bits: any change of one 4-byte word changes them, others do but for one case in 2^32.
    """
    functions.kernel("coords_bounds", (pointer(), i64(), pointer()), _bounds)
    functions.kernel("fingerprint", (pointer(), i64()), _fingerprint)


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
