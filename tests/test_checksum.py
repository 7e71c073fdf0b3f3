"""The checksum behind the caches: changes that a weak one lets cancel must show."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import spconv_compiler as sc
from spconv_compiler.arrays import as_array


@pytest.fixture(scope="module")
def kernel() -> sc.ConvKernel:
    return sc.load_conv(sc.CompileOptions((1, 1, 1), 3, 5))


def variants(base: np.ndarray) -> dict[str, np.ndarray]:
    """`base` with every pair of words changed alike: signs, halves and doubles, exchanges."""
    found = {"none": base}
    for i, j in itertools.combinations(range(len(base)), 2):
        for name, factors in (("signs", (-1, -1)), ("scales", (2, 0.5))):
            changed = base.copy()
            changed[i] *= factors[0]
            changed[j] *= factors[1]
            found[f"{name} {i} {j}"] = changed
        changed = base.copy()
        changed[[i, j]] = changed[[j, i]]
        found[f"exchange {i} {j}"] = changed
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("length", [32, 64, 96, 130])
def test_no_two_of_many_small_changes_agree(kernel: sc.ConvKernel, dtype: str, length: int) -> None:
    """Once two changes of sign, eight words apart in the last stride, gave the checksum of no change."""
    base = np.random.default_rng(length).normal(size=length).astype(dtype)
    seen: dict[int, tuple[str, bytes]] = {}
    for name, changed in variants(base).items():
        checksum = kernel.checksum(as_array(changed, "changed"))
        other, contents = seen.setdefault(checksum, (name, changed.tobytes()))
        assert contents == changed.tobytes(), (name, other)
    assert len(seen) > length * (length - 1)


def test_a_weight_negated_in_place_is_noticed() -> None:
    rng = np.random.default_rng(0)
    coords = np.zeros((1, 4), np.int32)
    features = rng.normal(size=(1, 16)).astype(np.float32)
    weight = rng.normal(size=(2, 1, 1, 1, 16)).astype(np.float32)
    before = sc.subm_conv3d(coords, features, weight)
    weight[0] *= -1
    after = sc.subm_conv3d(coords, features, weight)
    assert after[0, 0] == -before[0, 0] and after[0, 1] == before[0, 1]


@pytest.mark.parametrize("c_in", [8, 9, 25, 32, 40, 73, 256])
def test_a_tap_s_checksum_is_of_all_its_words_and_no_others(kernel: sc.ConvKernel, c_in: int) -> None:
    """Widths below, at and above the vectors and runs of vectors that are read at once."""
    weight = np.random.default_rng(c_in).normal(size=(3, 1, 1, 3, c_in)).astype(np.float32)

    def taps(changed: np.ndarray) -> list[int]:
        found = kernel.weight_print(as_array(changed, "weight"), "native").taps
        assert found is not None
        return [int(one) for one in found]

    known, seen = taps(weight), set()
    for row, tap, channel in np.ndindex(3, 3, c_in):
        changed = weight.copy()
        changed[row, 0, 0, tap, channel] *= -1
        found = taps(changed)
        assert [one for one in range(3) if found[one] != known[one]] == [tap], (row, tap, channel)
        seen.add(found[tap])
        # Equal changes a run, a vector, a row apart must not cancel.
        for more in {(channel + step) % c_in for step in (8, 16, 24, 32, 64)} - {channel}:
            twice = changed.copy()
            twice[row, 0, 0, tap, more] *= -1
            assert taps(twice)[tap] != known[tap], (row, tap, channel, more)
    assert len(seen) == 9 * c_in
