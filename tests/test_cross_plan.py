"""Outputs and convolution in one function: the passes make one plan of it, which runs group by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conv_cases import voxels
from cpu_harness import host_target

from spconv_compiler import reference_cross as rc
from spconv_compiler.arrays import as_array
from spconv_compiler.bindings import ir
from spconv_compiler.codegen_cpu import emit_cpu
from spconv_compiler.codegen_gpu import emit_gpu
from spconv_compiler.context import make_context
from spconv_compiler.coordinates import Box
from spconv_compiler.geometry import ConvGeometry, output_symbols
from spconv_compiler.linker import toolkit_dir
from spconv_compiler.pipeline import stages_for
from spconv_compiler.plan import extract_plan
from spconv_compiler.runner import Runner
from spconv_compiler.runtime.calls import host_call
from spconv_compiler.runtime.cpu import CpuModule
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.runtime.plan import CpuPlan
from spconv_compiler.runtime.sim import SimDevice
from spconv_compiler.targets import GpuTarget, code_target, get_target

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
    values |= {"order": 0, "coarse_order": 0}
    inputs = {"coords": coords.ctypes.data, "features": features.ctypes.data, "weight": weight.ctypes.data}

    kept = plan.run("fine", {**values, **inputs})
    kept |= plan.run("coords", {**values, **inputs}, kept)
    count = int(kept["out_status"].array()[0])
    out_coords, out = np.empty((count, 4), np.int32), np.empty((count, 8), np.float32)
    values |= {**inputs, "coarse_rows": count, "out0": out_coords.ctypes.data, "out1": out.ctypes.data}
    for group in ("decode", "coarse", "map", "pairs", "weights", "output"):
        kept |= plan.run(group, values, kept)
    assert np.array_equal(out_coords, rc.outputs(coords, grid))
    assert np.array_equal(out, np.maximum(rc.conv3d(coords, out_coords, features, weight, grid), 0))


UP = AXES.replace("transposed = false", "transposed = true")
SETS_UP = "(!spconv.coords<32>, !spconv.coords<32>, tensor<?x8xf32>, tensor<4x3x3x3x8xf32>)"
UNET = f"""
func.func @unet(%coords: !spconv.coords<32> {{spconv.name = "coords"}},
                %features: tensor<?x4xf32> {{spconv.name = "features"}},
                %weight: tensor<8x3x3x3x4xf32> {{spconv.name = "weight"}},
                %weight_up: tensor<4x3x3x3x8xf32> {{spconv.name = "weight_up"}})
    -> (!spconv.coords<32>, tensor<?x4xf32>) {{
  %out = "spconv.output_coords"(%coords) {{kernel_size = array<i64: 3, 3, 3>, {AXES}}}
    : (!spconv.coords<32>) -> !spconv.coords<32>
  %down = "spconv.sparse_conv3d"(%coords, %out, %features, %weight) {{{AXES}, epilogue = #spconv.epilogue<"relu">}}
    : {SETS} -> tensor<?x8xf32>
  %up = "spconv.sparse_conv3d"(%out, %coords, %down, %weight_up) {{{UP}, epilogue = #spconv.epilogue<"none">}}
    : {SETS_UP} -> tensor<?x4xf32>
  return %out, %up : !spconv.coords<32>, tensor<?x4xf32>
}}
"""


@pytest.mark.slow
def test_down_and_up_again_on_a_gpu() -> None:
    """Three ops in one function: outputs, a convolution onto them, and its inverse, which shares the one map.

    The number of outputs stays on the device, where all kernels read it: the host gives a capacity.
    """
    target = code_target(get_target("gfx950-sim"))
    assert isinstance(target, GpuTarget)
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(UNET)
        Runner(verify=True).run_stages(module, stages_for(target), lambda level, module: None)
        plan, code = extract_plan(module), emit_gpu(module, target, toolkit_dir())
    device = SimDevice()
    groups = [launch.group for launch in plan.launches]
    assert [groups.count(name) for name in ("coords", "map", "pairs", "weights")] == [3, 2, 18, 2]
    assert {name for name, _ in plan.inputs} >= {"coords_count", "out0", "out0_count", "out1"}

    coords, capacity, rng = voxels(300, 12, batches=2, seed=1), 600, np.random.default_rng(0)
    features = rng.integers(-3, 4, (300, 4)).astype(np.float32)
    weights = [rng.integers(-2, 3, size).astype(np.float32) for size in ((8, 3, 3, 3, 4), (4, 3, 3, 3, 8))]
    geometry, grid = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1)), rc.Grid.of(3, 2, 1)
    coarse = geometry.output_box(Box(tuple(coords.min(axis=0).tolist()), tuple(coords.max(axis=0).tolist())), None)
    assert coarse is not None
    box = {name.removeprefix("out_"): value for name, value in output_symbols(coarse).items()}
    values = {**output_symbols(coarse), **box, "rows": 300, "coarse_rows": capacity, "threads": 1}
    given = {"coords": coords, "features": features, "weight": weights[0], "weight_up": weights[1]}
    given["coords_count"] = np.full(2, 300, np.int32)
    results = {"out0": np.empty((capacity, 4), np.int32), "out0_count": np.empty(2, np.int32)}
    results["out1"] = np.empty((300, 4), np.float32)
    with host_call(device) as call:
        buffers: dict[str, Any] = {name: call.place(name, as_array(array, name)) for name, array in given.items()}
        buffers |= {name: call.allocate(name, array.nbytes) for name, array in results.items()}
        executor = GpuPlan(plan, device, code.object)
        for group in ("coords", "map", "pairs", "weights", "output"):
            buffers |= executor.run(group, values, buffers, call)
        for name, array in results.items():
            device.copy_out(array.ctypes.data, buffers[name])
    wanted = np.array(rc.outputs(coords, grid), np.int32)
    assert results["out0_count"].tolist() == [len(wanted)] * 2
    assert np.array_equal(results["out0"][: len(wanted)], wanted)
    down = np.maximum(rc.conv3d(coords, wanted, features, weights[0], grid), 0)
    assert np.array_equal(results["out1"], rc.conv3d(wanted, coords, down, weights[1], grid, transposed=True))
