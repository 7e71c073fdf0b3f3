"""Is a measured result right? Chosen rows against exact sums, so that a wrong kernel cannot win.

A full float64 convolution of the widest layers would take longer than all measurements. Rows that two
implementations disagree on most are chosen, and random ones: a difference anywhere is seen, and it is seen whose
it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler import reference

_RANDOM_ROWS = 512
_DISPUTED_ROWS = 64


@dataclass(frozen=True, eq=False)
class Judge:
    """Exact results of some rows of one 3x3x3 convolution.

    Attributes:
        table: neighbour table of the whole frame, int32 [N, 27].
        features: [N, C_in], and weight: native; as the kernel reads them.
        dtype: of the result.
    """

    table: reference.Rows
    features: Any
    weight: Any
    dtype: str

    def compare(self, out: Any, other: Any = None) -> reference.Comparison:
        """`out` [N, C_out] against exact sums, at random rows and where it differs most from `other`."""
        rows = self._rows(reference.to_numpy(out), None if other is None else reference.to_numpy(other))
        part = self.table[rows]
        # Only the rows that are read, so that float64 copies stay small.
        used, place = np.unique(part[part >= 0], return_inverse=True)
        local = np.full(part.shape, -1, np.int32)
        local[part >= 0] = place
        values = reference.to_numpy(self.features)[used]
        exact = reference.gather_gemm_scatter(values, self.weight, reference.pairs(local), len(rows))
        bound = reference.error_bound(values, self.weight, local, self.dtype)
        return reference.compare(reference.to_numpy(out)[rows], exact, bound)

    def _rows(self, out: npt.NDArray[Any], other: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
        count = len(self.table)
        rows = np.random.default_rng(0).choice(count, min(_RANDOM_ROWS, count), replace=False)
        if other is not None:
            rows = np.concatenate([rows, np.argsort(_difference(out, other))[-_DISPUTED_ROWS:]])
        return np.unique(rows).astype(np.int64)


def relative_difference(out: Any, other: Any) -> float:
    """Largest |out - other| over the largest |other|; infinite if a NaN is on one side only."""
    left, right = reference.to_numpy(out), reference.to_numpy(other)
    if left.size == 0:
        return 0.0
    scale = float(np.nanmax(np.abs(right))) or 1.0
    return float(_difference(left, right).max()) / scale


def _difference(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Per row, the largest |left - right|."""
    apart = np.abs(left.astype(np.float32) - right)
    apart[np.isnan(left) & np.isnan(right)] = 0.0
    worst: npt.NDArray[np.float32] = np.where(np.isnan(apart), np.inf, apart).max(axis=1)
    return worst
