"""Whole layers of real frames on the simulator, every kernel from its code object: `python -m pytest -m slow`."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from conv_cases import make_case

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler.bench.frames import load_frame

pytestmark = pytest.mark.slow


def simulated(case: Any) -> np.ndarray[Any, Any]:
    return np.asarray(sc.subm_conv3d(*case.tensors(), target="gfx950-sim", **case.options).float())


@pytest.mark.parametrize("frame", ["nuscenes-l0", "nuscenes-l2", "semantickitti"])
@pytest.mark.parametrize(("channels", "dtype"), [(128, "bf16"), (64, "f16"), (16, "f32")])
def test_whole_numbers_come_out_exactly(frame: str, channels: int, dtype: str, shared_dir: pathlib.Path) -> None:
    found = load_frame(frame, shared_dir / "data", shuffle=True)
    case = make_case(found.coords, 3, channels, channels, dtype=dtype, whole=True)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight)
    np.testing.assert_array_equal(simulated(case), reference.round_to(exact, dtype))


def test_random_numbers_stay_within_rounding(shared_dir: pathlib.Path) -> None:
    found = load_frame("nuscenes-l1", shared_dir / "data")
    case = make_case(found.coords, 3, 64, 128, dtype="bf16", whole=False)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight)
    bound = reference.error_bound(case.features, case.weight, found.table, "bf16")
    comparison = reference.compare(simulated(case), exact, bound)
    assert comparison.ok, comparison
