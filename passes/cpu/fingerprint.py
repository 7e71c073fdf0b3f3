"""Checksums of host memory, by which the driver notices that a tensor was written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.passes.cpu.functions import Functions, address_of, call, pointer
from spconv_compiler.passes.cpu.memory import CACHE_LINE, bytes_after, i8, prefetch
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, load, store, vec

# Words mixed side by side: enough chains to hide the latency of a multiplication.
_WORDS, _CHAINS = 8, 4
_VECTOR = 4 * _WORDS
READ_AT_ONCE = _VECTOR * _CHAINS
# Odd, so that multiplication loses nothing; the second is 2^64 divided by the golden ratio.
_ODD_32 = 0x2C1B3C6D
_ODD_64 = -7046029254386353131
# One odd multiplier for each chain, from the digits of pi; with the flip each gives a second one.
_FINISH = (0x243F6A89, 0x05A308D3, 0x13198A2F, 0x03707345)
_FLIP = 0x5A5A5A5A

_TAP = "tap_fingerprint"
_ENDS = "fingerprint_ends"


def define_fingerprints(functions: Functions) -> None:
    """Adds `fingerprint(memory, bytes)`, and two functions on a weight [rows, taps, bytes], bytes at least 32.

    fingerprint gives 64 bits: any change of one 4-byte word changes them, others do but for one case in 2^32.
    tap_fingerprints(weight, rows, taps, bytes, out) writes those of every tap to out i64 [taps]; taps_unchanged(weight,
    rows, taps, bytes, known, used, count) says whether the taps used i64 [count] still have those in known: 1 or 0.
    """
    functions.kernel("fingerprint", (pointer(), i64()), _fingerprint)
    functions.constant(_ENDS, bytes(_VECTOR) + b"\xff" * _VECTOR)
    functions.helper(_TAP, (pointer(), i64(), i64(), i64()), i64(), _tap_fingerprint)
    functions.kernel("tap_fingerprints", (pointer(), i64(), i64(), i64(), pointer()), _tap_fingerprints)
    functions.kernel("taps_unchanged", (pointer(), i64(), i64(), i64(), pointer(), pointer(), i64()), _taps_unchanged)


def _tap_fingerprints(weight: V, rows: V, taps: V, size: V, out: V) -> None:
    with for_(0, taps, 1, unroll=False) as tap:
        found = call(_TAP, [bytes_after(weight, tap.iv * size), rows, taps * size, size], i64())
        store(found, out, tap.iv)


def _taps_unchanged(weight: V, rows: V, taps: V, size: V, known: V, used: V, count: V) -> V:
    with for_(0, count, 1, [const(1, i64())], unroll=False) as loop:
        tap = load(used, i64(), loop.iv)
        found = call(_TAP, [bytes_after(weight, tap * size), rows, taps * size, size], i64())
        loop.yields(loop.args[0] & found.eq(load(known, i64(), tap)).to(i64()))
    return loop.results[0]


def _tap_fingerprint(memory: V, rows: V, stride: V, size: V) -> V:
    """Of `rows` pieces of memory, `size` bytes each and `stride` bytes apart."""
    word = vec(_WORDS, i32())
    runs, tail = size // READ_AT_ONCE, size % _VECTOR
    # What of a row's last vector is in no whole one.
    rest = load(bytes_after(address_of(_ENDS), tail), word)
    with for_(0, rows, 1, _begin(), unroll=False) as row:
        here = bytes_after(memory, row.iv * stride)
        with for_(0, runs, 1, row.args, unroll=False) as run:
            at = bytes_after(here, run.iv * READ_AT_ONCE)
            # Processors do not foresee where the next row begins.
            for line in range(0, READ_AT_ONCE, CACHE_LINE):
                prefetch(bytes_after(bytes_after(at, stride), line))
            vectors = [load(at, word, chain * _WORDS) for chain in range(_CHAINS)]
            run.yields(*(_mix(state, taken) for state, taken in zip(run.args, vectors, strict=True)))
        after = bytes_after(here, runs * READ_AT_ONCE)
        left = size % READ_AT_ONCE // _VECTOR
        whole = _each(run.results, left, lambda place: load(bytes_after(after, place * _VECTOR), word))
        last = bytes_after(here, size - _VECTOR)
        row.yields(*_each(whole, tail.umin(1), lambda _: load(last, word) & rest))
    return _close(row.results, size)


def _each(states: list[V], count: V, take: Callable[[V], V]) -> list[V]:
    """Mixes `count` vectors into the chains, in turns."""
    with for_(0, count, 1, states, unroll=False) as loop:
        first, *others = loop.args
        loop.yields(*others, _mix(first, take(loop.iv)))
    return loop.results


def _fingerprint(memory: V, size: V) -> V:
    return fingerprint_while(memory, size, (), lambda found, vectors: [])[0]


def fingerprint_while(
    memory: V, size: V, init: Sequence[V], look: Callable[[list[V], list[V]], list[V]]
) -> tuple[V, list[V], V]:
    """(fingerprint, what was found, the first byte that was not looked at): what `fingerprint` gives, and on the way
    found = look(found, vectors), from `init` on, for all whole runs of READ_AT_ONCE bytes."""
    strides = size // READ_AT_ONCE
    with for_(0, strides, 1, [*_begin(), *init], unroll=False) as loop:
        places = [(loop.iv * _CHAINS + chain) * _WORDS for chain in range(_CHAINS)]
        vectors = [load(memory, vec(_WORDS, i32()), place) for place in places]
        mixed = [_mix(state, taken) for state, taken in zip(loop.args, vectors, strict=False)]
        loop.yields(*mixed, *look(loop.args[_CHAINS:], vectors))
    chains, found = loop.results[:_CHAINS], loop.results[_CHAINS:]
    total, end = _close(chains, size), strides * READ_AT_ONCE
    with for_(end, size, 1, [total], unroll=False) as rest:
        byte = load(memory, i8(), rest.iv).to(i64())
        rest.yields(_fold(rest.args[0], byte))
    return rest.results[0], found, end


def _begin() -> list[V]:
    return [const(chain + 1, vec(_WORDS, i32())) for chain in range(_CHAINS)]


def _mix(state: V, words: V) -> V:
    product = (state ^ words) * _ODD_32
    # Without the shift, two changes of top bits would cancel: a change of sign in two floats.
    return product ^ (product >> 15)


def _close(chains: list[V], total: V) -> V:
    """Puts the chains together."""
    whole, *others = (_finish(state, chain) for chain, state in enumerate(chains))
    for state in others:
        whole = _mix(whole, state)
    halves = whole.bitcast(vec(_WORDS // 2, i64()))
    for lane in range(_WORDS // 2):
        total = _fold(total, halves.lane(lane))
    return total


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
