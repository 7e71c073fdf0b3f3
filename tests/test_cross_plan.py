"""Outputs and convolution in one function: the passes make one plan of it, which runs group by group."""

from __future__ import annotations

import numpy as np
import pytest
from conv_cases import voxels
from cpu_harness import host_target

from spconv_compiler import reference_cross as rc
from spconv_compiler.bindings import ir
from spconv_compiler.codegen_cpu import emit_cpu
from spconv_compiler.context import make_context
from spconv_compiler.coordinates import Box
from spconv_compiler.geometry import ConvGeometry, output_symbols
from spconv_compiler.pipeline import stages_for
from spconv_compiler.plan import extract_plan
from spconv_compiler.runner import Runner
from spconv_compiler.runtime.cpu import CpuModule
from spconv_compiler.runtime.plan import CpuPlan

AXES = (
    "stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false"
)
SETS = "(!spconv.coords<32>, !spconv.coords<32>, tensor<?x4xf32>, tensor<8x3x3x3x4xf32>)"
MODULE = f"""
func.func @conv(%coords: !spconv.coords<32> {{spconv.name = "coords"}},
                %features: tensor<?x4xf32> {{spconv.name = "features"}},
                %weight: tensor<8x3x3x3x4xf32> {{spconv.name = "weight"}})
    -> (!spconv.coords<32>, tensor<?x8xf32>) {{
  %out = "spconv.output_coords"(%coords) {{kernel_size = array<i64: 3, 3, 3>, {AXES}}}
    : (!spconv.coords<32>) -> !spconv.coords<32>
  %rows = "spconv.sparse_conv3d"(%coords, %out, %features, %weight) {{{AXES}, epilogue = #spconv.epilogue<"relu">}}
    : {SETS} -> tensor<?x8xf32>
  return %out, %rows : !spconv.coords<32>, tensor<?x8xf32>
}}
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_outputs_and_convolution_in_one_plan(threads: int) -> None:
    target = host_target()
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(MODULE)
        Runner(verify=True).run_stages(module, stages_for(target), lambda level, module: None)
        plan = CpuPlan(extract_plan(module), CpuModule(emit_cpu(module, target)))
    assert [launch.group for launch in plan.plan.launches].count("coords") == 1
    assert [name for name, _ in plan.plan.inputs] == ["coords", "features", "weight", "out0", "out1"]

    geometry, grid = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1)), rc.Grid.of(3, 2, 1)
    coords, rng = voxels(700, 12, batches=2, seed=1), np.random.default_rng(0)
    features = rng.integers(-3, 4, (700, 4)).astype(np.float32)
    weight = rng.integers(-3, 4, (8, 3, 3, 3, 4)).astype(np.float32)
    fine = Box(tuple(coords.min(axis=0).tolist()), tuple(coords.max(axis=0).tolist()))
    coarse = geometry.output_box(fine, None)
    assert coarse is not None
    values = {**output_symbols(coarse), **geometry.symbols(fine, coarse), "rows": 700, "threads": threads}
    inputs = {"coords": coords.ctypes.data, "features": features.ctypes.data, "weight": weight.ctypes.data}

    kept = plan.run("coords", {**values, **inputs})
    count = int(kept["out_status"].array()[0])
    out_coords, out = np.empty((count, 4), np.int32), np.empty((count, 8), np.float32)
    values |= {**inputs, "coarse_rows": count, "out0": out_coords.ctypes.data, "out1": out.ctypes.data}
    for group in ("map", "pairs", "weights", "output"):
        kept |= plan.run(group, values, kept)
    assert np.array_equal(out_coords, rc.outputs(coords, grid))
    assert np.array_equal(out, np.maximum(rc.conv3d(coords, out_coords, features, weight, grid), 0))
