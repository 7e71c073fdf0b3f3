"""Whole convolutions on the native engine: every buffer and every count as on the numpy engine.

Operands are whole numbers, so that sums are exact in any order and every buffer must be equal bit by bit.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from conv_cases import Case, make_case, voxels

from spconv_compiler import reference
from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_conv
from spconv_compiler.coordinates import Box
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.interpreter import Counts, Machine
from spconv_compiler.sim.native.machine import NativeMachine
from spconv_compiler.sim.run_plan import PlanRun, from_storage, run_plan, to_storage


@functools.cache
def compiled(kernel: int, c_in: int, c_out: int, key_width: int, **options: Any) -> Artifact:
    return compile_conv(kernel, c_in, c_out, key_width, target="gfx950", **{"schedule": "pairs_m16", **options})


def run(artifact: Artifact, case: Case, engine: Any, kernels: Any = None, *, reverse: bool = False) -> PlanRun:
    given = {"coords": case.coords, "features": case.features, "weight": case.weight, "bias": case.bias}
    arrays = {name: to_storage(given[name], dtype) for name, dtype in artifact.plan.inputs if name != "out"}
    low, high = case.coords.min(axis=0), case.coords.max(axis=0)
    box = Box(tuple(map(int, low)), tuple(map(int, high)))
    options = artifact.meta["options"]
    symbols = {**box.symbols(tuple(options["kernel_size"]), tuple(options["dilation"])), "rows": len(case.coords)}
    size = len(case.coords) * options["c_out"]
    found = CodeObject(artifact.object).kernels if kernels is None else kernels
    return run_plan(found, artifact.plan, arrays, {**symbols, "threads": 1}, size, engine=engine, reverse=reverse)


def native(**options: Any) -> Any:
    return lambda kernels, budget: NativeMachine(kernels, budget, **options)


def assert_right(found: PlanRun, artifact: Artifact, case: Case) -> None:
    options, dtype = artifact.meta["options"], dict(artifact.plan.inputs)["out"]
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, case.bias, case.options.get("dilation", 1))
    if options["activation"] == "relu":
        exact = np.maximum(exact, 0.0)
    out = from_storage(found.array("out", dtype), dtype).reshape(exact.shape)
    np.testing.assert_array_equal(out, reference.round_to(exact, dtype))


CASES: dict[str, tuple[int, int, int, int, int, dict[str, Any]]] = {
    # rows, kernel, c_in, c_out, key width, options
    "bf16": (200, 3, 16, 32, 32, {"dtype": "bf16"}),
    "64-bit keys": (90, 3, 32, 64, 64, {"dtype": "bf16", "out_dtype": "f32"}),
    "f32, bias": (100, 3, 24, 20, 32, {"dtype": "f32", "bias": True}),
    "f16, relu": (130, 3, 3, 16, 32, {"dtype": "f16", "bias": True, "activation": "relu"}),
    "five taps": (300, 5, 16, 16, 32, {"dtype": "bf16"}),
    "one row": (1, 3, 64, 3, 32, {"dtype": "bf16"}),
}


def prepared(name: str) -> tuple[Artifact, Case]:
    rows, kernel, c_in, c_out, key_width, options = CASES[name]
    case = make_case(
        voxels(rows, 8, seed=rows) - np.array([0, 3, 5, 4], np.int32),
        kernel,
        c_in,
        c_out,
        dtype=options["dtype"],
        bias=options.get("bias", False),
        whole=True,
    )
    return compiled(kernel, c_in, c_out, key_width, **options), case


# Workgroups of these wait for those before them: how often they look is for the order in which workgroups run.
WAITING = ("compact_pairs", "sort_digit")


def settled(launches: list[tuple[str, Counts]]) -> list[tuple[str, Any]]:
    """Kernels with the counts that do not depend on the order of workgroups."""
    return [(name, counts.waves if name.startswith(WAITING) else counts) for name, counts in launches]


@pytest.mark.parametrize("name", CASES)
def test_every_buffer_equals_the_numpy_engine(name: str) -> None:
    artifact, case = prepared(name)
    wanted = run(artifact, case, Machine)
    assert_right(wanted, artifact, case)
    for options in ({}, {"threads": 2}, {"window": 3, "slice_branches": 2}):
        found = run(artifact, case, native(**options))
        in_order = not options
        assert settled(found.launches) == settled(wanted.launches), options
        assert not in_order or found.launches == wanted.launches
        for buffer, allocation in wanted.buffers.items():
            ready = wanted.machine.memory.initialised(allocation)
            own = found.buffers[buffer]
            assert np.array_equal(found.machine.memory.initialised(own), ready), (buffer, options)
            words, expected = found.machine.memory.read_bytes(own), wanted.machine.memory.read_bytes(allocation)
            assert np.array_equal(words[ready], expected[ready]), (buffer, options)


@pytest.mark.parametrize(("schedule", "c_in", "c_out"), [("pairs_m16", 129, 512), ("auto", 257, 16)])
def test_long_rows_of_an_odd_number_of_half_words(schedule: str, c_in: int, c_out: int) -> None:
    """Runs of loads of which none may overwrite an address: the static checks would refuse them."""
    case = make_case(voxels(20, 4, seed=1), 3, c_in, c_out, dtype="bf16", whole=True)
    artifact = compiled(3, c_in, c_out, 32, dtype="bf16", out_dtype="f32", schedule=schedule)
    assert_right(run(artifact, case, native()), artifact, case)


@pytest.mark.parametrize("name", ["bf16", "f32, bias"])
def test_other_ways_to_run(name: str) -> None:
    artifact, case = prepared(name)
    for options in ({"checks": False}, {"checks": False, "threads": 2}):
        assert_right(run(artifact, case, native(**options)), artifact, case)
    assert_right(run(artifact, case, native(), reverse=True), artifact, case)


@pytest.mark.parametrize(
    ("kernel", "old", "new", "message"),
    [
        ("lookup", "v_lshlrev_b32_e32 v2, 4, v2", "v_lshlrev_b32_e32 v2, 5, v2", "out of bounds"),
        ("gemm", "v_and_b32_e32 v14, 24, v1", "s_nop 0", "the offset is undefined"),
        ("gemm", "s_mov_b32 s38, s26", "s_nop 0", "the buffer descriptor is undefined"),
    ],
)
def test_broken_kernels_are_noticed_in_the_same_words(kernel: str, old: str, new: str, message: str) -> None:
    from dataclasses import replace

    from sim_kernels import encode

    case = make_case(voxels(500, 20), 3, 16, 32, dtype="bf16", whole=True)
    artifact = compiled(3, 16, 32, 32, dtype="bf16")
    kernels = dict(CodeObject(artifact.object).kernels)
    name = next(name for name in kernels if name.startswith(kernel))
    before, after = encode(old), encode(new)
    assert len(before) == len(after) and kernels[name].code.count(before) >= 1
    kernels[name] = replace(kernels[name], code=kernels[name].code.replace(before, after, 1))
    texts = []
    for engine in (Machine, native()):
        with pytest.raises(Fault, match=message) as caught:
            run(artifact, case, engine, kernels)
        texts.append(str(caught.value).splitlines()[0])
    assert texts[0] == texts[1]
