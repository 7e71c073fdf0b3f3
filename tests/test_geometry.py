"""Sizes and boxes of ConvGeometry against the oracle and against what outputs really are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conv_cases import voxels
from cross_cases import GRIDS
from hypothesis import given, settings
from hypothesis import strategies as st

from spconv_compiler import reference_cross as rc
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry, key_width, output_symbols

triples = st.tuples(*[st.integers(1, 6)] * 3)
pads = st.tuples(*[st.integers(0, 6)] * 3)
geometries = st.builds(ConvGeometry, triples, triples, pads, triples, st.booleans())


def grid_of(geometry: ConvGeometry) -> rc.Grid:
    return rc.Grid(geometry.kernel_size, geometry.stride, geometry.padding, geometry.dilation)


def box_of(coords: Any) -> Box:
    return Box(tuple(np.min(coords, axis=0).tolist()), tuple(np.max(coords, axis=0).tolist()))


@given(geometries, st.tuples(*[st.integers(1, 40)] * 3), st.tuples(*[st.integers(0, 3)] * 3))
def test_output_shapes(geometry: ConvGeometry, shape: Any, extra: Any) -> None:
    grid = grid_of(geometry)
    wanted = grid.transposed_shape(shape, extra) if geometry.transposed else grid.output_shape(shape)
    assert geometry.output_shape(shape, extra) == wanted


@settings(deadline=None)
@given(geometries, st.integers(-50, 50), st.booleans(), st.integers(0, 1000))
def test_boxes_hold_all_outputs_and_all_that_they_meet(
    geometry: ConvGeometry, offset: int, bounded: bool, seed: int
) -> None:
    coords = voxels(5, 7, seed=seed) + (0 if bounded else np.array([0, offset, -offset, 2 * offset]))
    shape = geometry.output_shape((7, 7, 7)) if bounded else None
    outputs = rc.outputs(coords.astype(np.int32), grid_of(geometry), transposed=geometry.transposed, shape=shape)
    box = geometry.output_box(box_of(coords), shape)
    if box is None:
        assert outputs == []
        return
    assert all(low <= n <= high for row in outputs for low, n, high in zip(box.low, row, box.high, strict=True))
    fine, coarse = (box, box_of(coords)) if geometry.transposed else (box_of(coords), box)
    symbols = geometry.symbols(fine, coarse)
    for corner in (coarse.low, coarse.high):
        for tap in ((0, 0, 0), tuple(n - 1 for n in geometry.kernel_size)):
            met = grid_of(geometry).fine_of(corner, tap)  # type: ignore[arg-type]
            for axis, name in enumerate("zyx", 1):
                assert 0 <= met[axis] - symbols[f"min_{name}"] < symbols[f"extent_{name}"]


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_no_input_has_more_outputs_than_buffers_are_made_for(name: str, transposed: bool) -> None:
    from spconv_compiler.passes.reach import Reach

    grid = rc.Grid.of(*GRIDS[name])
    axes = (grid.kernel_size, grid.stride, grid.padding, grid.dilation)
    most = Reach.of(*axes, transposed=transposed).most
    around = np.stack(np.meshgrid([0], *[range(-6, 6)] * 3, indexing="ij"), axis=-1).reshape(-1, 4)
    counts = [len(rc.outputs(point[None], grid, transposed=transposed)) for point in around.astype(np.int32)]
    assert max(counts) == most


def test_key_widths() -> None:
    assert key_width({"cells": 2**31 - 65}) == 32
    assert key_width({"cells": 2**31 - 64}) == 64


def test_symbols_beyond_64_bits_are_refused() -> None:
    far = Box((0, 0, 0, 0), (2**15, 2**17, 2**17, 2**17))
    with pytest.raises(InputError, match=r"cells; accepted: below 2\^63"):
        output_symbols(far)
    with pytest.raises(InputError, match=r"cells; accepted: below 2\^63"):
        ConvGeometry((1, 1, 1)).symbols(far, far)


@pytest.mark.parametrize("sign", [-1, 1])
def test_outputs_beyond_int32_are_refused(sign: int) -> None:
    point = Box((0, 0, sign * 2**30, 0), (0, 0, sign * 2**30, 0))
    with pytest.raises(InputError, match="outputs along y go from"):
        ConvGeometry((2, 2, 2), (1, 4, 1), transposed=True).output_box(point, None)


def test_a_geometry_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"kernel_size is \(3, 0, 3\); accepted: three numbers"):
        ConvGeometry((3, 0, 3))
