"""The comparison with the reference can fail: kept buffers are broken one at a time, and it sees each.

What is broken is what a wrong kernel would get wrong: a pair that is dropped, doubled or misread, two taps or a row
that are mixed up, one weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import Case, make_case, mismatch, voxels

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler.arrays import as_array
from spconv_compiler.compiler import conv_options
from spconv_compiler.driver import ConvKernel, KernelMap


@dataclasses.dataclass
class Parts:
    """A convolution taken apart: kernel, map, packed weight and operands."""

    case: Case
    kernel: ConvKernel
    map: KernelMap
    packed: Any

    def array(self, name: str) -> Any:
        return {**self.map.buffers, **self.packed}[name].array()

    def run(self) -> torch.Tensor:
        features = self.case.tensors()[1]
        out = torch.full((len(self.case.coords), self.case.weight.shape[0]), torch.nan)
        self.kernel.run(self.map, self.packed, as_array(features, "features"), out.data_ptr())
        return out


@pytest.fixture
def parts() -> Parts:
    case = make_case(voxels(700, 10), 3, 8, 16, whole=True)
    case.features[:] += 4  # never zero: a row that is left out is missed
    coords, _, weight, _ = case.tensors()
    kernel, points = sc.load_conv(conv_options(3, 8, 16)), as_array(coords, "coords")
    return Parts(case, kernel, kernel.build_map(points, kernel.box(points)), kernel.pack(as_array(weight, "weight")))


def drop_one_pair(parts: Parts) -> None:
    # Where the last tap of the first chunk ends (passes/cpu/chunk_pairs.py).
    parts.array("tap_first").reshape(-1, 28)[0, 27] -= 1


def count_one_pair_twice(parts: Parts) -> None:
    pairs = parts.array("pairs")
    pairs[1] = pairs[0]


def read_another_row(parts: Parts) -> None:
    parts.array("pairs")[5] ^= 1


def shift_the_first_tap(parts: Parts) -> None:
    parts.array("tap_first").reshape(-1, 28)[0, 1] += 1


def swap_two_taps(parts: Parts) -> None:
    packed = parts.array("packed").reshape(27, -1)
    packed[[3, 4]] = packed[[4, 3]]


def forget_one_row(parts: Parts) -> None:
    origin = parts.array("origin")
    origin[300] = origin[301]


def change_one_weight(parts: Parts) -> None:
    parts.array("packed").reshape(27, -1)[13, 0] += 1


def test_unbroken_parts_agree(parts: Parts) -> None:
    assert mismatch(parts.run(), parts.case, whole=True) is None
    assert parts.map.pairs == len(reference.pairs(reference.kernel_map(parts.case.coords)))


@pytest.mark.parametrize(
    "break_it",
    [
        drop_one_pair,
        count_one_pair_twice,
        read_another_row,
        shift_the_first_tap,
        swap_two_taps,
        forget_one_row,
        change_one_weight,
    ],
)
def test_what_is_broken_is_seen(parts: Parts, break_it: Callable[[Parts], None]) -> None:
    break_it(parts)
    assert mismatch(parts.run(), parts.case, whole=True) is not None


def test_bounds_notice_what_is_broken() -> None:
    """The bound for random numbers is tight enough to see one missing pair, one bf16 rounding, one wrong weight."""
    case = make_case(voxels(700, 10), 3, 8, 16)
    out = case.run()
    assert mismatch(out, case, whole=False) is None
    table = reference.kernel_map(case.coords)
    row, tap = np.argwhere(table >= 0)[100]
    table[row, tap] = -1
    dropped = reference.subm_conv3d(case.coords, case.features, case.weight, table=table)
    assert mismatch(dropped, case, whole=False) is not None
    assert mismatch(out.bfloat16().float(), case, whole=False) is not None
    wrong = case.weight.copy()
    wrong[0, 1, 1, 1, 0] *= 1 + 2**-10
    assert mismatch(dataclasses.replace(case, weight=wrong).run(), case, whole=False) is not None
