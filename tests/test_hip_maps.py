"""Map, pairs and gemm in one graph on the HIP shim: no count comes to the host between coordinates and result."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from conv_cases import make_case, mismatch, voxels
from hip_harness import Shim

import spconv_compiler as sc
from spconv_compiler.arrays import as_array
from spconv_compiler.driver_gpu import GpuConvKernel
from spconv_compiler.runtime.calls import HostCall
from spconv_compiler.runtime.hip import Stream, capture
from spconv_compiler.runtime.hip_library import load_hip

pytestmark = pytest.mark.usefixtures("shim")

C_IN, C_OUT, ROWS = 16, 32, 48


@pytest.mark.parametrize("mapper", ["dense_grid", "z_delta"])
def test_coordinates_to_result_in_one_graph(shim: Shim, mapper: str) -> None:
    """Replayed on other coordinates in the same place: other pairs, and another number of them, in order or not."""
    kernel = sc.load_conv(
        sc.CompileOptions((3, 3, 3), C_IN, C_OUT, dtype="bf16", out_dtype="bf16", target="gfx950", mapper=mapper)
    )
    assert isinstance(kernel, GpuConvKernel)
    ends = np.array([[0, 0, 0, 0], [1, 6, 6, 6]], np.int32)
    inner = [voxels(ROWS - 2, 5, batches=2, seed=seed) + np.array([0, 1, 1, 1], np.int32) for seed in (1, 2)]
    sets = [np.random.default_rng(0).permutation(np.concatenate([ends, inside])) for inside in inner]
    sets.append(sets[0][np.lexsort(sets[0].T[::-1])])
    cases = [make_case(coords, 3, C_IN, C_OUT, dtype="bf16", whole=True, target="gfx950", seed=1) for coords in sets]
    coords, features, weight, _ = cases[0].tensors()
    out = torch.zeros(ROWS, C_OUT, dtype=torch.bfloat16)
    points, plan, device = as_array(coords, "coords"), kernel._plan, kernel._device
    symbols = {**kernel.box(points).symbols((3, 3, 3), (1, 1, 1)), "rows": ROWS, "threads": 1}
    packed = kernel.pack(as_array(weight, "weight"))
    with Stream(load_hip()) as stream:
        call = HostCall(device, stream.handle)
        buffers = {**call.use(packed), "coords": call.place("coords", points)}
        buffers["features"] = call.place("features", as_array(features, "features"))
        buffers["out"] = call.output("out", out.data_ptr(), 2 * out.numel())
        for group in ("pairs", "output"):
            buffers |= plan.allocate(group, symbols, buffers, call)
        stream.synchronize()
        shim.launched.clear()
        with capture(stream) as captured:
            device.copy_in(buffers["coords"], coords.data_ptr(), stream.handle)
            for group in ("pairs", "output"):
                plan.launch(group, symbols, buffers, call)
            call.deliver(buffers["out"], out.data_ptr())
        assert shim.launched == [] and not out.any(), "a capture runs nothing"
        with captured.graph as graph:
            for case in cases:
                same = dataclasses.replace(case, features=cases[0].features, weight=cases[0].weight)
                coords.copy_(same.tensors()[0])
                graph.launch(stream)
                stream.synchronize()
                assert mismatch(out, same, whole=True) is None
    assert ("look_up" in " ".join(shim.launched)) == (mapper == "dense_grid")
