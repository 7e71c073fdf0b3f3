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
