"""Target gfx950-sim: the public functions on the simulator, by the executor that drives a real GPU."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import Case, check, make_case, mismatch, voxels

import spconv_compiler as sc
from spconv_compiler import driver_gpu, nets, reference
from spconv_compiler.arrays import as_array
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.runtime import sim
from spconv_compiler.sim.errors import Fault, ObjectError
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.native import library
from spconv_compiler.targets import GpuTarget, code_target, get_target
from spconv_compiler.tools.run import main

TARGET = "gfx950-sim"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Memory of the simulator goes back when nothing needs it any longer."""
    yield
    sc.clear_caches()
    gc.collect()
    assert sim.sim_device().live() == []


def case_of(rows: int = 40, **others: Any) -> Case:
    coords = voxels(rows, 5, batches=2) - np.array([0, 3, 5, 4], np.int32)
    return make_case(coords, 3, 16, 32, **{"dtype": "bf16", "whole": True, "target": TARGET, **others})


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "random"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "f32", "bias": True},
        {"dtype": "f16", "bias": True, "activation": "relu", "out_dtype": "f32"},
        {"dilation": (1, 2, 1)},
    ],
    ids=str,
)
def test_convolution(options: dict[str, Any], whole: bool) -> None:
    check(case_of(**options, whole=whole), whole=whole)


@pytest.mark.parametrize("rows", [0, 1, 16, 17])
def test_rows(rows: int) -> None:
    check(case_of(rows), whole=True)


def test_numpy_in_numpy_out() -> None:
    case = case_of(dtype="f32")
    out = sc.subm_conv3d(case.coords, case.features, case.weight, target=TARGET)
    assert isinstance(out, np.ndarray) and mismatch(out, case, whole=True) is None


def launched(case: Case, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Instructions of each kernel, in the order in which they ran first."""
    found: dict[str, int] = {}
    monkeypatch.setattr(sim.sim_device(), "watch", lambda name, counts: found.update({name: counts.instructions}))
    check(case, whole=True)
    return found


def test_a_grid_beyond_narrow_offsets_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuTarget, "narrow_cells", property(lambda self: 500))
    found = launched(case_of(), monkeypatch)
    wanted = sc.compile_conv(3, 16, 32, dtype="bf16", target=TARGET, mapper="z_delta").plan.launches
    assert list(found) == list(dict.fromkeys(launch.kernel for launch in wanted)) and min(found.values()) > 0


def test_wide_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters so far apart that the box around them has more than 2^31 cells."""
    case = case_of()
    case.coords[::2, 1:] += 2000
    found = launched(case, monkeypatch)
    wanted = sc.compile_conv(3, 16, 32, key_width=64, dtype="bf16", target=TARGET, mapper="z_delta").plan.launches
    assert list(found) == list(dict.fromkeys(launch.kernel for launch in wanted)) and min(found.values()) > 0


def test_facts_are_those_of_the_gpu() -> None:
    target, gpu = get_target(TARGET), get_target("gfx950")
    assert code_target(target) is gpu and code_target(gpu) is gpu
    facts = {**target.facts(), "name": "gfx950", "simulated": False, "code_of": ""}
    assert facts == gpu.facts()


def test_maps_and_weights_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("build_map", "pack"):
        method = getattr(driver_gpu.GpuConvKernel, name)

        def counted(*arguments: Any, name: str = name, method: Any = method) -> Any:
            made.append(name)
            return method(*arguments)

        monkeypatch.setattr(driver_gpu.GpuConvKernel, name, counted)
    coords, features, weight, _ = case_of().tensors()
    for _ in range(2):
        sc.subm_conv3d(coords, features, weight, target=TARGET)
    assert made == ["build_map", "pack"]
    weight.add_(1)
    sc.subm_conv3d(coords, features, weight, target=TARGET)
    # Written past the version counter, which the checksum sees.
    coords.numpy()[0, 1] += 40
    out = sc.subm_conv3d(coords, features, weight, target=TARGET)
    assert made == ["build_map", "pack", "pack", "build_map"]
    case = case_of()
    case.coords[0, 1] += 40
    case.weight[:] += 1
    assert mismatch(out, case, whole=True) is None


def test_targets_do_not_share_maps() -> None:
    """The same tensors on the cpu and on the simulator, in turns."""
    case = case_of()
    coords, features, weight, _ = case.tensors()
    for target in (TARGET, "cpu", TARGET, "cpu"):
        assert mismatch(sc.subm_conv3d(coords, features, weight, target=target), case, whole=True) is None


def test_backward_is_refused() -> None:
    coords, features, weight, _ = case_of().tensors()
    out = sc.subm_conv3d(coords, features.requires_grad_(), weight, target=TARGET)
    with pytest.raises(sc.SpconvError, match="no backward pass"):
        out.float().sum().backward()


def test_pairs() -> None:
    case = case_of()
    kernel = sc.load_conv(sc.CompileOptions((3, 3, 3), 16, 32, dtype="bf16", out_dtype="bf16", target=TARGET))
    points = as_array(case.coords, "coords")
    assert kernel.build_map(points, kernel.box(points)).pairs == int((reference.kernel_map(case.coords, 3) >= 0).sum())


def test_threads() -> None:
    cases = [case_of(10 + rows) for rows in range(3)]
    problems: list[str | None] = []
    threads = [
        threading.Thread(target=lambda case=case: problems.append(mismatch(case.run(), case, whole=True)))
        for case in cases
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [None] * 3


def test_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    coords, features = voxels(20, 4), rng.standard_normal((20, 4)).astype(np.float32)
    runs = list(nets.run_net(nets.get_net("second-stage1"), coords, features, target=TARGET, repeats=1))
    assert [run.rows for run in runs] == [20, 20] and runs[0].pairs == int((reference.kernel_map(coords, 3) >= 0).sum())


def test_the_run_tool(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    cloud = np.random.default_rng(0).uniform(0, 2, (60, 4)).astype(np.float32)
    (tmp_path / "scan.bin").write_bytes(cloud.tobytes())
    command = ["scan.bin", "--target", TARGET, "--net", "second-stage1", "--voxel-size", "0.5", "--repeats", "1"]
    assert main([*command, "--check", "--no-output"]) == 0
    printed = capsys.readouterr().out
    assert "for gfx950-sim; ready in" in printed and "2 layers within the error bound" in printed
    assert "ms of the simulator on this host, not of a GPU: median of 1 run" in printed


def test_hosts_without_the_native_engine(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(library, "NEEDED_FEATURES", {"avx2", "a feature of tomorrow"})
    sim.prepare(lambda steps: pytest.fail("something is built"))
    device = sim.SimDevice()
    machine = device.load(sc.compile_conv(3, 16, 32, dtype="bf16", target=TARGET).object)
    assert isinstance(machine, Machine) and "the simulator is slow here: the native engine needs" in caplog.text
    grid, back = device.allocate("grid", 64), np.zeros(16, np.int32)
    # No workgroup is beyond those of the grid, so that nothing is cleared.
    device.launch(machine, "fill_grid_k32_k32_i4_d3_b256", [1], 256, [grid, grid, 16, 0])
    device.copy_out(back.ctypes.data, grid)
    assert (back == back[0]).all() and back[0] != 0


# Failures.


def test_a_kernel_that_faults_says_so_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features that are too short: the gather finds bytes that nobody allocated."""
    case = case_of()
    with monkeypatch.context() as patch:
        place = driver_gpu.HostCall.place

        def shortened(self: Any, name: str, array: Any) -> Any:
            short = array._replace(shape=(array.shape[0] // 2, *array.shape[1:])) if name == "features" else array
            return place(self, name, short)

        patch.setattr(driver_gpu.HostCall, "place", shortened)
        with pytest.raises(Fault, match="gemm(.|\n)*out of bounds: .*features"):
            case.run()
    check(case, whole=True)


def test_a_write_to_an_input_is_a_fault() -> None:
    device = sim.SimDevice()
    machine = device.load(sc.compile_conv(3, 16, 32, dtype="bf16", target=TARGET).object)
    grid = device.allocate("grid", 16384, writable=False)
    with pytest.raises(Fault, match="grid"):
        device.launch(machine, "fill_grid_k32_k32_i4_d3_b256", [1], 256, [grid, grid, 4096, 0])


def test_reading_what_no_kernel_wrote_is_a_fault() -> None:
    device = sim.SimDevice()
    device.load(sc.compile_conv(3, 16, 32, dtype="bf16", target=TARGET).object)
    buffer, back = device.allocate("out", 64), np.zeros(64, np.uint8)
    with pytest.raises(Fault, match="nobody wrote: byte 0 of out"):
        device.copy_out(back.ctypes.data, buffer)


def test_memory_is_taken_back() -> None:
    device = sim.SimDevice()
    for _ in range(5):
        device.allocate("scratch", 4096)
        gc.collect()
    assert len(device.memory.allocations) == 1 and device.live() == []


def test_out_of_memory() -> None:
    device = sim.SimDevice()
    device.load(sc.compile_conv(3, 16, 32, dtype="bf16", target=TARGET).object)
    with pytest.raises(LaunchError, match="out of memory on the simulator: grid: .* bytes"):
        device.allocate("grid", 2**62)


def test_code_that_is_no_code_object() -> None:
    with pytest.raises(ObjectError, match="truncated"):
        sim.SimDevice().load(b"\x7fELF")


def test_tensors_elsewhere_are_refused() -> None:
    with pytest.raises(InputError, match="coords is on device meta; accepted: cpu"):
        sc.subm_conv3d(
            torch.zeros(3, 4, dtype=torch.int32, device="meta"), torch.zeros(3, 4), torch.zeros(4, 1, 1, 1, 4)
        )


def test_a_kernel_that_travels_is_loaded_anew() -> None:
    kernel = sc.load_conv(sc.CompileOptions((3, 3, 3), 16, 32, target=TARGET))
    copy = pickle.loads(pickle.dumps(kernel))
    assert type(copy) is type(kernel) and copy is not kernel and copy.options == kernel.options
