"""Convolutions for gfx950 on the simulator, each compiled once: run, and compared with the reference bit by bit."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from conv_cases import Case, voxels

from spconv_compiler import reference
from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_conv
from spconv_compiler.coordinates import Box
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.native.machine import NativeMachine
from spconv_compiler.sim.run_plan import PlanRun, from_storage, run_plan, to_storage


@functools.cache
def compiled(kernel: int, c_in: int, c_out: int, **options: Any) -> Artifact:
    return compile_conv(kernel, c_in, c_out, target="gfx950", **options)


class Shuffled(NativeMachine):
    """Starts workgroups in an order of its own."""

    seed = 0

    def launch(self, name: str, grid: Sequence[int], block: int, arguments: Any, order: Any = None) -> Any:
        order = np.random.default_rng(self.seed).permutation(int(np.prod(grid))).tolist() if self.seed else order
        return super().launch(name, grid, block, arguments, order)


def run(artifact: Artifact, case: Case, seed: int = 0, kernels: Mapping[str, Kernel] | None = None) -> PlanRun:
    given = {"coords": case.coords, "features": case.features, "weight": case.weight, "bias": case.bias}
    arrays = {name: to_storage(given[name], dtype) for name, dtype in artifact.plan.inputs if name != "out"}
    box = Box(tuple(case.coords.min(axis=0).tolist()), tuple(case.coords.max(axis=0).tolist()))
    options = artifact.meta["options"]
    symbols = {**box.symbols(tuple(options["kernel_size"]), tuple(options["dilation"])), "rows": len(case.coords)}

    def engine(found: Mapping[str, Kernel], budget: int) -> NativeMachine:
        machine = Shuffled(found, budget)
        machine.seed = seed
        return machine

    found = CodeObject(artifact.object).kernels if kernels is None else kernels
    size = len(case.coords) * options["c_out"]
    return run_plan(found, artifact.plan, arrays, {**symbols, "threads": 1}, size, engine=engine)


def result(found: PlanRun, artifact: Artifact, case: Case) -> np.ndarray:
    assert found.machine.memory.initialised(found.buffers["out"]).all()
    dtype = dict(artifact.plan.inputs)["out"]
    return from_storage(found.array("out", dtype), dtype).reshape(len(case.coords), -1)


def naming(c_in: int, c_out: int, dtype: str) -> Case:
    """Weights that name their tap in even output channels, their input channel in odd ones; a row picks one.

    None is zero, so a step of K that is left out or taken twice shows by every row that picks one of its channels.
    """
    coords = voxels(200, 7, seed=3)
    weight = np.empty((c_out, 3, 3, 3, c_in), np.float32)
    weight[::2] = 1 + np.arange(27).reshape(3, 3, 3, 1)
    weight[1::2] = 1 + np.arange(c_in) % 256
    features = np.zeros((len(coords), c_in), np.float32)
    features[np.arange(len(coords)), np.arange(len(coords)) % c_in] = 1.0
    return Case(coords, features, weight, None, dtype, {})


def check(case: Case, **options: Any) -> PlanRun:
    """Runs a case of whole numbers and compares every bit with the reference."""
    c_out, kernel, _, _, c_in = case.weight.shape
    artifact = compiled(kernel, c_in, c_out, dtype=case.dtype, bias=case.bias is not None, **options)
    found = run(artifact, case)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, case.bias, options.get("dilation", 1))
    if options.get("activation") == "relu":
        exact = np.maximum(exact, 0.0)
    dtype = dict(artifact.plan.inputs)["out"]
    np.testing.assert_array_equal(result(found, artifact, case), reference.round_to(exact, dtype))
    return found
