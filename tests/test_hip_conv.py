"""Whole convolutions through the HIP runtime on the shim, from their code objects, against the numpy reference."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import Case, check, expected, make_case, mismatch, voxels
from hip_harness import Shim

import spconv_compiler as sc
from spconv_compiler import api, reference
from spconv_compiler.arrays import as_array
from spconv_compiler.driver_gpu import GpuConvKernel
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.runtime.calls import HostCall
from spconv_compiler.runtime.hip import Stream, capture
from spconv_compiler.runtime.hip_device import HipDevice
from spconv_compiler.runtime.hip_library import load_hip
from spconv_compiler.targets import get_target

pytestmark = pytest.mark.usefixtures("shim")

C_IN, C_OUT = 16, 32


def case_of(rows: int = 40, *, seed: int = 0, **others: Any) -> Case:
    """A convolution of whole numbers in bf16, with negative coordinates and two batches."""
    coords = voxels(rows, 5, batches=2, seed=seed) - np.array([0, 3, 5, 4], np.int32)
    settings = {"dtype": "bf16", "whole": True, "target": "gfx950", "seed": seed, **others}
    return make_case(coords, 3, C_IN, C_OUT, **settings)


def kernel_of(**others: Any) -> GpuConvKernel:
    settings = {"dtype": "bf16", "out_dtype": "bf16", "target": "gfx950", **others}
    found = sc.load_conv(sc.CompileOptions((3, 3, 3), C_IN, C_OUT, **settings))
    assert isinstance(found, GpuConvKernel)
    return found


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "random"])
def test_convolution(rows: int, dtype: str, whole: bool) -> None:
    check(case_of(rows, dtype=dtype, whole=whole), whole=whole)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "f32", "bias": True},
        {"dtype": "bf16", "bias": True, "activation": "relu"},
        {"dtype": "f16", "bias": True, "activation": "relu", "out_dtype": "f32"},
        {"dtype": "bf16", "dilation": 2},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    check(case_of(60, **options), whole=True)


def test_no_rows(shim: Shim) -> None:
    case = case_of(1)
    empty = dataclasses.replace(case, coords=case.coords[:0], features=case.features[:0])
    assert empty.run().shape == (0, C_OUT)
    assert shim.launched == []


def test_numpy_in_numpy_out() -> None:
    case = case_of(30, dtype="f16", bias=True)
    features, weight = case.features.astype(np.float16), case.weight.astype(np.float16)
    out = sc.subm_conv3d(case.coords, features, weight, case.bias, target="gfx950")
    assert isinstance(out, np.ndarray) and out.dtype == np.float16
    assert mismatch(out, case, whole=True) is None


def test_int64_coordinates_without_batch() -> None:
    case = case_of(30)
    once = dataclasses.replace(case, coords=np.unique(case.coords * [0, 1, 1, 1], axis=0).astype(np.int32))
    given = make_case(once.coords, 3, C_IN, C_OUT, dtype="bf16", whole=True)
    _, features, weight, _ = given.tensors()
    out = sc.subm_conv3d(torch.from_numpy(once.coords[:, 1:].astype(np.int64)), features, weight, target="gfx950")
    assert mismatch(out, given, whole=True) is None


def test_wide_keys(monkeypatch: pytest.MonkeyPatch, shim: Shim) -> None:
    """No grid is made that 32-bit offsets do not reach: keys are sorted and searched."""
    target = get_target("gfx950")
    monkeypatch.setattr(type(target), "narrow_cells", property(lambda self: 500))
    check(case_of(40), whole=True)
    assert "search_rows_k32_3x3x3_d1x1x1_k32_i4_d3" in shim.launched


def test_wide_keys_of_a_grid(shim: Shim) -> None:
    """Where the grid is asked for, it is reached by 64-bit addresses."""
    case = case_of(50)
    kernel, points = kernel_of(mapper="dense_grid", key_width=64), as_array(case.coords, "coords")
    found = kernel.build_map(points, kernel.box(points))
    assert found.pairs == int((reference.kernel_map(case.coords, 3) >= 0).sum())
    assert "look_up_rows_k64_3x3x3_d1x1x1_k32_i4_d3" in shim.launched


def test_when_keys_become_wide() -> None:
    """At 2^30 - 4 cells the grid of i32 fills 4 GiB but for one vector of 16 bytes, and buffers reach no further."""
    target = get_target("gfx950")
    assert target.narrow_cells == 2**30 - 4
    kernel = kernel_of(mapper="dense_grid")
    for extra, width in ((0, 32), (4, 64)):
        # 4 batches, z and y padded to 16 and 16 each, x as long as it takes.
        cells = 2**30 - 4 * 16 * 16 + extra * 256
        box = api.Box((0, 0, 0, 0), (3, 13, 13, cells // 1024 - 3))
        assert box.symbols((3, 3, 3), (1, 1, 1))["cells"] == cells // 1024 * 1024
        assert kernel.key_width(box) == width
    box = api.Box((0, 0, 0, 0), (3, 13, 13, 2**20))
    with pytest.raises(InputError, match="need 64-bit keys; accepted by this kernel: key_width=32"):
        kernel.build_map(as_array(voxels(4, 3), "coords"), box)


def test_extreme_coordinates() -> None:
    """The box's corner with its halo lies below int32: kernels compute modulo 2^32."""
    case = case_of(30)
    low = (case.coords.astype(np.int64) - case.coords.min(axis=0) + [0, -(2**31), -(2**31), 2**31 - 6]).astype(np.int32)
    check(dataclasses.replace(case, coords=low), whole=True)


def test_repeated_coordinates_read_the_lowest_row() -> None:
    coords = voxels(40, 4)
    coords = np.concatenate([coords, coords[10:20]])
    check(make_case(coords, 3, C_IN, C_OUT, dtype="bf16", whole=True, target="gfx950"), whole=True)


def test_more_rows_than_the_grid_of_workgroups() -> None:
    check(make_case(voxels(600, 9), 3, C_IN, C_OUT, dtype="bf16", whole=True, target="gfx950"), whole=True)


@pytest.mark.parametrize(
    ("schedule", "packing", "kernels"),
    [
        ("auto", "pack_taps", ["gemm"]),
        ("pairs_m16", "pack_weight", ["fill", "gemm", "apply"]),
    ],
)
def test_map_and_weights_are_made_once(shim: Shim, schedule: str, packing: str, kernels: list[str]) -> None:
    coords, features, weight, _ = case_of(40).tensors()

    def run() -> torch.Tensor:
        shim.launched.clear()
        out = sc.subm_conv3d(coords, features, weight, target="gfx950", schedule=schedule)
        assert isinstance(out, torch.Tensor)
        return out

    first, again = run(), run()
    assert [name.partition("_")[0] for name in shim.launched] == kernels
    assert torch.equal(first, again)
    weight.add_(1)
    changed = run()
    assert shim.launched[0].startswith(packing) and not torch.equal(first, changed)
    assert [name.partition("_")[0] for name in shim.launched[1:]] == kernels, "the map stays"


def test_the_simulator_and_the_gpu_share_no_memory() -> None:
    """The same kernels and the same tensors, in turns: maps and packed weights stay where they were made."""
    case = case_of(20)
    coords, features, weight, _ = case.tensors()
    for target in ("gfx950", "gfx950-sim", "gfx950", "gfx950-sim"):
        assert mismatch(sc.subm_conv3d(coords, features, weight, target=target), case, whole=True) is None


def test_pairs_are_counted() -> None:
    case = case_of(50)
    kernel, points = kernel_of(), as_array(case.coords, "coords")
    found = kernel.build_map(points, kernel.box(points))
    assert found.rows == 50 and found.pairs == int((reference.kernel_map(case.coords, 3) >= 0).sum())


def test_backward_is_refused() -> None:
    coords, features, weight, _ = case_of(10).tensors()
    out = sc.subm_conv3d(coords, features, weight.requires_grad_(), target="gfx950")
    with pytest.raises(sc.SpconvError, match="no backward pass"):
        out.float().sum().backward()


def test_threads() -> None:
    """Calls from several threads, each with its own operands; every one gets its own result."""
    cases = [case_of(20 + 5 * number, seed=number) for number in range(4)]
    problems: list[str | None] = []

    def work(case: Case) -> None:
        for _ in range(2):
            problems.append(mismatch(case.run(), case, whole=True))

    threads = [threading.Thread(target=work, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [None] * 8


# Streams and graphs, below the public function.


class Parts:
    """A convolution with its map, packed weights and buffers in place."""

    def __init__(self, case: Case) -> None:
        self.case, self.kernel = case, kernel_of()
        device = self.kernel._device
        assert isinstance(device, HipDevice)
        self.device = device
        coords, features, weight, _ = case.tensors()
        points = as_array(coords, "coords")
        self.map = self.kernel.build_map(points, self.kernel.box(points))
        self.packed = self.kernel.pack(as_array(weight, "weight"))
        self.features, self.out = features, torch.zeros(len(coords), C_OUT, dtype=torch.bfloat16)

    def prepare(self, stream: Stream) -> HostCall:
        call = HostCall(self.device, stream.handle)
        given = {**call.use(self.map.buffers), **call.use(self.packed)}
        given["features"] = call.place("features", as_array(self.features, "features"))
        given["out"] = call.output("out", self.out.data_ptr(), 2 * self.out.numel())
        self.buffers = {**given, **self.kernel._plan.allocate("output", self.map.symbols, given, call)}
        return call

    def launch(self, call: HostCall) -> None:
        self.kernel._plan.launch("output", self.map.symbols, self.buffers, call)
        call.deliver(self.buffers["out"], self.out.data_ptr())


def test_a_graph_replays_a_convolution() -> None:
    """Captured once, launched on other features in the same place: upload, kernels and download are all in it."""
    case = case_of(40)
    parts = Parts(case)
    with Stream(load_hip()) as stream:
        call = parts.prepare(stream)
        stream.synchronize()
        with capture(stream) as captured:
            parts.device.copy_in(parts.buffers["features"], parts.features.data_ptr(), stream.handle)
            parts.launch(call)
        assert not parts.out.any(), "a capture runs nothing"
        with captured.graph as graph:
            for scale in (1, 2, -1):
                scaled = dataclasses.replace(case, features=scale * case.features)
                parts.features.copy_(scaled.tensors()[1])
                graph.launch(stream)
                stream.synchronize()
                assert mismatch(parts.out, scaled, whole=True) is None


def test_two_streams() -> None:
    cases = [case_of(30, seed=1), case_of(45, seed=2)]
    parts = [Parts(case) for case in cases]
    with Stream(load_hip()) as first, Stream(load_hip()) as second:
        calls = [part.prepare(stream) for part, stream in zip(parts, (first, second), strict=True)]
        for part, call in zip(parts, calls, strict=True):
            part.launch(call)
        assert not parts[0].out.any() and not parts[1].out.any(), "nothing has been waited for"
        second.synchronize()
        assert mismatch(parts[1].out, cases[1], whole=True) is None and not parts[0].out.any()
        first.synchronize()
        assert mismatch(parts[0].out, cases[0], whole=True) is None


# Failures: an exception with HIP's words, nothing left behind (the fixture counts), and the next call works.


def run_twice(shim: Shim, case: Case, call: str, error: str, after: int, times: int = 1) -> LaunchError | None:
    """What the first run raises; the second must be right."""
    failure = None
    shim.fail(call, error, after, times)
    try:
        assert mismatch(case.run(), case, whole=True) is None
    except LaunchError as raised:
        failure = raised
        assert shim.pending() == 0, "work is left that reads and writes what the caller takes back"
        raised.__traceback__ = None
    shim.reset()
    assert mismatch(case.run(), case, whole=True) is None
    return failure


@pytest.mark.parametrize("after", [0, 3, 5, 6, 7, 8])
def test_every_launch_may_fail(shim: Shim, after: int) -> None:
    failure = run_twice(shim, case_of(20), "hipModuleLaunchKernel", "hipErrorLaunchFailure", after)
    text = "hipModuleLaunchKernel: hipErrorLaunchFailure (719): unspecified launch failure"
    assert str(failure) == text


@pytest.mark.parametrize("after", [0, 1, 6, 9, 11, 12])
def test_every_allocation_may_fail(shim: Shim, after: int) -> None:
    failure = run_twice(shim, case_of(20), "hipMallocAsync", "hipErrorOutOfMemory", after, 100)
    assert failure is not None and "hipMallocAsync: hipErrorOutOfMemory (2): out of memory" in str(failure)
    assert "bytes for" in str(failure) and "on GPU 0" in str(failure)


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("hipMemcpyAsync", 0),
        ("hipMemcpyAsync", 1),
        ("hipMemcpyAsync", 3),
        ("hipStreamSynchronize", 0),
        ("hipStreamSynchronize", 2),
        ("hipStreamCreateWithFlags", 0),
        ("hipStreamCreateWithFlags", 1),
        ("hipModuleLoadData", 0),
        ("hipModuleGetFunction", 0),
        ("hipModuleGetFunction", 4),
        ("hipMemPoolSetAttribute", 0),
        ("hipGetDevice", 1),
    ],
)
def test_every_other_call_may_fail(shim: Shim, call: str, after: int) -> None:
    failure = run_twice(shim, case_of(20), call, "hipErrorLaunchFailure", after)
    assert str(failure).startswith(f"{call}: hipErrorLaunchFailure (719)")


def test_memory_that_waits_to_be_given_back_is_found(shim: Shim) -> None:
    """An allocation that fails at first is tried again once the device has given back what is free."""
    shim.fail("hipMallocAsync", "hipErrorOutOfMemory", after=5)
    check(case_of(20), whole=True)


def test_too_little_memory(shim: Shim) -> None:
    shim.limit_memory(60_000)
    with pytest.raises(LaunchError, match=r"bytes for \w+ on GPU 0: hipMallocAsync: hipErrorOutOfMemory"):
        case_of(40).run()


def test_a_kernel_that_faults(shim: Shim) -> None:
    """The simulator's complaint becomes HIP's error at the end of the call."""
    case = case_of(20)
    parts = Parts(case)
    with Stream(load_hip()) as stream:
        call = parts.prepare(stream)
        # Kernels read rows of features that are not there.
        parts.buffers["features"] = call.allocate("features", 16)
        parts.launch(call)
        with pytest.raises(LaunchError, match=r"hipStreamSynchronize: hipErrorLaunchFailure \(719\)"):
            stream.synchronize()
    assert len(shim.faults) == 1 and "gemm" in str(shim.faults[0])


@pytest.mark.parametrize("pools", [True, False])
def test_with_and_without_memory_pools(shim: Shim, pools: bool) -> None:
    shim.configure(pools=pools)
    case = case_of(30)
    np.testing.assert_array_equal(reference.to_numpy(case.run()), expected(case))
