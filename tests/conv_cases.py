"""Convolutions to test with: coordinates, operands, and comparison with the reference.

Operands are drawn twice over. Whole numbers small enough that every sum is exact in f32 must come out equal, bit
for bit; random numbers must come out within `reference.error_bound`, which grows with the terms of each sum.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

import spconv_compiler as sc
from spconv_compiler import reference

Coords = npt.NDArray[np.int32]
Triple = tuple[int, int, int]


def voxels(n: int, box: int | Triple, *, batches: int = 1, seed: int = 0) -> Coords:
    """int32 [n, 4]: distinct voxels in random order, z, y, x below box."""
    sizes = (batches, *reference.as_triple(box))
    rng = np.random.default_rng(seed)
    cells = rng.choice(np.prod(sizes, dtype=np.int64), n, replace=False)
    return np.stack(np.unravel_index(cells, sizes), axis=1).astype(np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One convolution. Values are held in float32 and are representable in `dtype`.

    Attributes:
        coords: [N, 4]. features: [N, C_in]. weight: native. bias: [C_out] f32 or None.
        dtype: of features and weight. options: further arguments of subm_conv3d.
    """

    coords: Coords
    features: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None = None
    dtype: str = "f32"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def tensors(self) -> tuple[Any, Any, Any, Any]:
        """(coords, features, weight, bias) as torch tensors."""
        import torch

        kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[self.dtype]
        bias = None if self.bias is None else torch.from_numpy(self.bias)
        values = (torch.from_numpy(np.ascontiguousarray(value)).to(kind) for value in (self.features, self.weight))
        return (torch.from_numpy(np.ascontiguousarray(self.coords)), *values, bias)

    def run(self) -> Any:
        return sc.subm_conv3d(*self.tensors(), **self.options)


def make_case(
    coords: Coords,
    kernel: int | Triple,
    c_in: int,
    c_out: int,
    *,
    dtype: str = "f32",
    bias: bool = False,
    whole: bool = False,
    seed: int = 0,
    **options: Any,
) -> Case:
    """Operands for the coordinates: whole numbers from -3 to 3, or normal ones rounded to dtype."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> npt.NDArray[np.float32]:
        if whole:
            return rng.integers(-3, 4, shape).astype(np.float32)
        return reference.round_to(rng.standard_normal(shape), dtype)

    features, weight = draw(len(coords), c_in), draw(c_out, *reference.as_triple(kernel), c_in)
    return Case(coords, features, weight, draw(c_out) if bias else None, dtype, options)


def expected(case: Case, table: npt.NDArray[np.int32] | None = None) -> npt.NDArray[np.float64]:
    """What the convolution is, exact up to float64."""
    dilation = case.options.get("dilation", 1)
    out = reference.subm_conv3d(case.coords, case.features, case.weight, case.bias, dilation, table=table)
    return np.maximum(out, 0.0) if case.options.get("activation") == "relu" else out


def mismatch(out: Any, case: Case, *, whole: bool) -> str | None:
    """What is wrong with a result, or None when it is right."""
    size = case.weight.shape[1:4]
    table = reference.kernel_map(case.coords, size, case.options.get("dilation", 1))
    dtype = case.options.get("out_dtype") or case.dtype
    exact, found = expected(case, table), reference.to_numpy(out)
    if whole:
        wrong = np.argwhere(reference.round_to(exact, dtype) != found)
        return f"{len(wrong)} of {found.size} values differ, the first at {wrong[0]}" if len(wrong) else None
    bound = reference.error_bound(case.features, case.weight, table, dtype, case.bias)
    comparison = reference.compare(found, exact, bound)
    return None if comparison.ok else str(comparison)


def check(case: Case, *, whole: bool) -> None:
    """Runs a case and compares it with the reference."""
    out = case.run()
    assert out.shape == (len(case.coords), case.weight.shape[0])
    problem = mismatch(out, case, whole=whole)
    assert problem is None, problem
