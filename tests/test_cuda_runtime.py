"""The CUDA runtime against a driver without a GPU (tests/cuda_shim), which keeps the driver's rules."""

from __future__ import annotations

import ctypes
import gc
import pathlib
import pickle
import shutil
import subprocess
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from spconv_compiler import env
from spconv_compiler.errors import CodegenError, LaunchError
from spconv_compiler.runtime.cuda import Event, Stream, StreamWords, capture
from spconv_compiler.runtime.cuda_device import CudaDevice
from spconv_compiler.runtime.cuda_library import CudaError, CudaLibrary, load_cuda
from spconv_compiler.runtime.driver_library import passed

SOURCE = pathlib.Path(__file__).resolve().parent / "cuda_shim" / "shim.c"
STREAM, EVENT, MODULE, GRAPH, EXECUTABLE = 1, 2, 3, 5, 6
PTX = """// dynamic shared memory of scale: 100000
.version 8.3
.target sm_90a
.visible .entry add_one(
    .param .u64 .ptr .global .align 16 add_one_param_0,
    .param .u32 add_one_param_1
)
.maxntid 64, 1, 1
{
}
.visible .entry scale(
    .param .u64 .ptr .global .align 16 scale_param_0,
    .param .u32 scale_param_1,
    .param .u64 scale_param_2
)
.maxntid 64, 1, 1
{
    .shared .align 4 .b8 words[128];
}
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("this system has no C compiler")
    place = tmp_path_factory.mktemp("cuda") / "libcuda.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(place), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True, timeout=60)
    return place


@pytest.fixture
def library(built: pathlib.Path, tmp_path: pathlib.Path) -> CudaLibrary:
    # A copy: each test has a driver of its own.
    own = tmp_path / "libcuda.so.1"
    shutil.copy(built, own)
    return CudaLibrary(str(own))


@pytest.fixture
def device(library: CudaLibrary) -> Iterator[CudaDevice]:
    made = CudaDevice(library, 0, "sm_90a")
    yield made
    assert library._library.shim_contexts() == 0


def shim(device: CudaDevice, name: str, *arguments: int) -> int:
    return int(device.driver._library[name](*arguments))


def words(device: CudaDevice, values: list[int], stream: int) -> tuple[object, np.ndarray]:
    host = np.array(values, np.int32)
    buffer = device.allocate("words", host.nbytes, stream)
    device.copy_in(buffer, host.ctypes.data, stream)
    return buffer, host


def test_kernels_run_in_order_on_what_was_copied(device: CudaDevice) -> None:
    module = device.load(PTX.encode())
    with device.stream() as stream:
        buffer, host = words(device, [1, 2, 3], stream)
        device.launch(module, "add_one", [1], 64, [buffer, 3], stream)  # type: ignore[list-item]
        device.launch(module, "scale", [1], 64, [buffer, 3, -5], stream)  # type: ignore[list-item]
        device.copy_out(host.ctypes.data, buffer, stream)  # type: ignore[arg-type]
    assert host.tolist() == [-10, -15, -20]


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "arguments", "message"),
    [
        ("add_one", [1], 32, [0, 1], "32 lanes a block; accepted: 64"),
        ("add_one", [0], 64, [0, 1], r"grid \[0\]"),
        ("add_one", [1, 65536], 64, [0, 1], r"grid \[1, 65536\]"),
        ("add_one", [1], 64, [0], "takes 2 arguments; given: 1"),
        ("add_one", [1], 64, [0, 2**32], "argument 1 is 4294967296; accepted: 4 bytes"),
        ("nothing", [1], 64, [0], "no kernel 'nothing'; it has: add_one, scale"),
    ],
)
def test_a_launch_that_does_not_fit_is_refused(
    device: CudaDevice, kernel: str, grid: list[int], block: int, arguments: list[int], message: str
) -> None:
    module = device.load(PTX.encode())
    with pytest.raises(LaunchError, match=message), device.stream() as stream:
        device.launch(module, kernel, grid, block, arguments, stream)


def test_freed_memory_is_not_reached(device: CudaDevice) -> None:
    with device.stream() as stream:
        buffer = device.allocate("words", 16, stream)
        address = buffer.pointer
        assert shim(device, "shim_blocks") == 1
        buffer.close()
        assert shim(device, "shim_blocks") == 0
        with pytest.raises(LaunchError, match="closed"):
            _ = buffer.pointer
        with pytest.raises(CudaError, match=r"ILLEGAL_ADDRESS \(700\)"):
            device.driver.call("cuMemcpyDtoHAsync_v2", ctypes.addressof((ctypes.c_char * 16)()), address, 16, stream)


def test_memory_goes_back_when_nobody_has_it(device: CudaDevice) -> None:
    with device.stream() as stream:
        kept = [device.allocate("words", 4, stream) for _ in range(3)]
        del kept
        gc.collect()
        assert shim(device, "shim_blocks") == 0


def test_out_of_memory_names_what_was_asked_for(device: CudaDevice) -> None:
    shim(device, "shim_set", 1, 0, 100)
    with device.stream() as stream, pytest.raises(LaunchError, match="101 bytes for the map on GPU 0.*OUT_OF_MEMORY"):
        device.allocate("the map", 101, stream)


def test_captured_work_is_done_when_the_graph_is_launched(device: CudaDevice) -> None:
    module, stream = device.load(PTX.encode()), Stream(device.driver)
    buffer, host = words(device, [1, 2], stream.handle)
    with capture(stream) as captured:
        device.launch(module, "add_one", [1], 64, [buffer, 2], stream.handle)  # type: ignore[list-item]
        device.copy_out(host.ctypes.data, buffer, stream.handle)  # type: ignore[arg-type]
    assert host.tolist() == [1, 2]
    for _ in range(3):
        captured.graph.launch(stream)
    stream.synchronize()
    assert host.tolist() == [4, 5]


def test_a_capture_that_fails_is_ended(device: CudaDevice) -> None:
    stream = Stream(device.driver)
    with pytest.raises(LaunchError, match="bytes for words"), capture(stream) as captured:
        device.allocate("words", 4, stream.handle)
    with pytest.raises(LaunchError, match="there is no graph"):
        _ = captured.graph
    stream.synchronize()
    assert shim(device, "shim_living", EXECUTABLE) == 0


def test_events_order_and_time(device: CudaDevice) -> None:
    stream, first, last = Stream(device.driver), Event(device.driver, timing=True), Event(device.driver, timing=True)
    first.record(stream)
    stream.wait(first)
    last.record(stream)
    last.synchronize()
    assert stream.done()
    assert not last.done()
    assert last.milliseconds_since(first) == 1.5


def test_handles_are_released_once(device: CudaDevice) -> None:
    before = shim(device, "shim_living", STREAM)
    with Stream(device.driver) as stream:
        assert shim(device, "shim_living", STREAM) == before + 1
    stream.close()
    assert shim(device, "shim_living", STREAM) == before
    with pytest.raises(LaunchError, match="closed"):
        stream.synchronize()


def test_other_threads_have_the_context_too(device: CudaDevice) -> None:
    found: list[int] = []

    def work() -> None:
        with device.stream() as stream:
            _, host = words(device, [7], stream)
            found.append(int(host[0]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [7] * 4


def test_ptx_that_the_driver_refuses_is_quoted(device: CudaDevice) -> None:
    with pytest.raises(LaunchError, match=r"cannot be loaded: .*INVALID_PTX.*line 1: syntax error"):
        device.load((PTX + "broken").encode())
    with pytest.raises(CodegenError, match="no kernels"):
        device.load(b"\x7fELF")


def test_a_gpu_of_another_kind_is_refused(library: CudaLibrary) -> None:
    library._library.shim_set(1, 3, 1 << 30)
    with pytest.raises(LaunchError, match="GPU 0 is Shim 0 of compute capability 9.3; the code is for sm_90a"):
        CudaDevice(library, 0, "sm_90a")


def test_a_missing_gpu_is_named(library: CudaLibrary) -> None:
    with pytest.raises(LaunchError, match="no NVIDIA GPU with number 1: the driver finds 1"):
        CudaDevice(library, 1, "sm_90a")
    library._library.shim_set(0, 0, 1 << 30)
    with pytest.raises(LaunchError, match=r"no NVIDIA GPU: .*NO_DEVICE"):
        CudaDevice(library, 0, "sm_90a")


def test_a_missing_driver_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv(env.CUDA.name, str(tmp_path / "nothing.so"))
    with pytest.raises(LaunchError, match="no NVIDIA GPU: SPCONV_CUDA: .*nothing.so"):
        load_cuda()


def test_errors_survive_pickling(library: CudaLibrary) -> None:
    error = library.error("cuInit", 100)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code) == (str(error), 100)


def test_words_copies_and_a_graph_on_the_device(device: CudaDevice) -> None:
    module = device.load(PTX.encode())
    with device.stream() as stream:
        (first, _), (second, host) = words(device, [7, 7, 7], stream), words(device, [5, 5, 5], stream)
        device.fill_words(first.pointer, -3, 2, stream)  # type: ignore[attr-defined]
        device.copy(second.pointer, first.pointer, 8, stream)  # type: ignore[attr-defined]
        graph = device.capture(
            lambda other: device.launch(module, "add_one", [1], 64, [second, 3], other)  # type: ignore[list-item]
        )
        for _ in range(2):
            graph.launch(stream)
        device.copy_out(host.ctypes.data, second, stream)  # type: ignore[arg-type]
    assert host.tolist() == [-1, -1, 7]


def test_a_launch_that_is_prepared_runs_on_what_is_set(device: CudaDevice) -> None:
    """Its arguments are copied when it is queued: what is set later is for later launches."""
    module = device.load(PTX.encode())
    with device.stream() as stream:
        (first, one), (second, two) = words(device, [1, 2, 3], stream), words(device, [5, 6, 7], stream)
        prepared = device.prepare(module, "scale", [1], 64, [first, 3, -5])  # type: ignore[list-item]
        prepared.launch(stream)
        prepared.slot(0).value, prepared.slot(1).value = second.pointer, 2  # type: ignore[attr-defined]
        prepared.launch(stream)
        device.copy_out(one.ctypes.data, first, stream)  # type: ignore[arg-type]
        device.copy_out(two.ctypes.data, second, stream)  # type: ignore[arg-type]
    assert (one.tolist(), two.tolist()) == ([-5, -10, -15], [-25, -30, 7])
    with pytest.raises(LaunchError, match="32 lanes a block; accepted: 64"):
        device.prepare(module, "add_one", [1], 32, [0, 1])
    with device.current():
        prepared.slot(0).value = 0
        with device.stream() as stream, pytest.raises(CudaError, match="cuLaunchKernelEx: CUDA_ERROR_ILLEGAL_ADDRESS"):
            prepared.launch(stream)


def test_words_of_the_host_are_written_by_kernels(device: CudaDevice) -> None:
    module = device.load(PTX.encode())
    before = shim(device, "shim_blocks")
    report = device.host_words(3)
    assert report.words[:] == [0, 0, 0] and report.nbytes == 12
    report.words[1] = 41
    with device.stream() as stream:
        device.launch(module, "add_one", [1], 64, [report, 2], stream)
    assert report.words[:] == [1, 42, 0]
    report.close()
    assert shim(device, "shim_blocks") == before


def test_columns_are_copied_and_captured(device: CudaDevice) -> None:
    with device.stream() as stream:
        (left, _), (right, _), (out, host) = (words(device, values, stream) for values in
                                              ([1, 2, 3, 4], [5, 6], [0] * 6))

        def queue(to: int) -> None:
            device.copy_columns(out.pointer, 12, left.pointer, 8, 8, 2, to)  # type: ignore[attr-defined]
            device.copy_columns(out.pointer + 8, 12, right.pointer, 4, 4, 2, to)  # type: ignore[attr-defined]

        graph = device.capture(queue)
        device.copy_out(host.ctypes.data, out, stream)  # type: ignore[arg-type]
        assert host.tolist() == [0] * 6
        calls, event = device.calls(), device.event()
        with device.current():
            calls.launch_graph(graph.handle, stream)
            calls.record(event.handle, stream)
            calls.synchronize(event.handle)
            with pytest.raises(CudaError, match="cuEventSynchronize: CUDA_ERROR_INVALID_HANDLE"):
                calls.synchronize(stream)
        device.copy_out(host.ctypes.data, out, stream)  # type: ignore[arg-type]
        with pytest.raises(CudaError, match="cuMemcpy2DAsync_v2: CUDA_ERROR_INVALID_VALUE"):
            device.copy_columns(out.pointer, 4, left.pointer, 8, 8, 2, stream)  # type: ignore[attr-defined]
    assert host.tolist() == [1, 2, 5, 3, 4, 6]


def test_a_graph_is_launched_with_nothing_around_it(device: CudaDevice) -> None:
    """By its handle and the stream's, made once; where that fails, the code says why. Its template is gone."""
    module, templates = device.load(PTX.encode()), shim(device, "shim_living", GRAPH)
    with device.stream() as stream:
        buffer, host = words(device, [1, 2], stream)
        graph = device.capture(
            lambda other: device.launch(module, "add_one", [1], 64, [buffer, 2], other)  # type: ignore[list-item]
        )
        assert shim(device, "shim_living", GRAPH) == templates
        (handle, launch), bound = graph.bare(), passed(stream)
        failed = device.calls().graph_failed
        with device.current():
            assert launch(handle, bound) == launch(handle, bound) == 0
            assert str(failed(launch(bound, bound))).startswith("cuGraphLaunch: CUDA_ERROR_INVALID_HANDLE")
        device.copy_out(host.ctypes.data, buffer, stream)  # type: ignore[arg-type]
    assert host.tolist() == [3, 4]
    del graph
    gc.collect()
    assert shim(device, "shim_living", EXECUTABLE) == 0


def test_words_are_written_by_a_stream(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers of 64 bits, the values of the moment; there are none where device or driver cannot, or refuse."""
    name = "cuStreamBatchMemOp_v2"
    made, host = device.stream_words(), np.zeros(2, np.int64)
    assert made is not None
    (write, given), first, second = made.bare(), *made.places
    with device.stream() as stream:
        made.words[first], made.words[second] = -(2**40) - 3, 2**31 + 5
        made.write(stream)
        made.words[first] = 7
        device.copy_out(host.ctypes.data, made, stream)
        assert host.tolist() == [-(2**40) - 3, 2**31 + 5]
        assert write(passed(stream), *given) == 0
        device.copy_out(host.ctypes.data, made, stream)
        assert host.tolist() == [7, 2**31 + 5]
    assert str(made.failed(write(passed(stream), *given))).startswith(f"{name}: CUDA_ERROR_INVALID_CONTEXT")
    device.driver._library.shim_stream_writes(0)
    assert device.stream_words() is None
    device.driver._library.shim_stream_writes(1)
    with monkeypatch.context() as patch:
        patch.setattr(StreamWords, "write", lambda words, stream: device.driver.call(name, stream, 0, 0, 0))
        assert device.stream_words() is None
    monkeypatch.delitem(device.driver._functions, name)
    with monkeypatch.context() as patch:
        patch.setattr(device.driver, "_library", ctypes.CDLL(None))
        assert device.stream_words() is None


@pytest.mark.parametrize("overlaps", [True, False])
def test_launches_overlap_where_they_may(device: CudaDevice, overlaps: bool) -> None:
    """Launched at once and prepared alike; the driver is told so, or not."""
    device.driver.overlaps = overlaps
    module = device.load(PTX.encode())
    with device.stream() as stream:
        buffer, host = words(device, [1, 2, 3], stream)
        before = shim(device, "shim_overlapping")
        device.launch(module, "add_one", [1], 64, [buffer, 3], stream)  # type: ignore[list-item]
        device.prepare(module, "add_one", [1], 64, [buffer, 3]).launch(stream)  # type: ignore[list-item]
        assert shim(device, "shim_overlapping") - before == 2 * overlaps
        device.copy_out(host.ctypes.data, buffer, stream)  # type: ignore[arg-type]
    assert host.tolist() == [3, 4, 5]


def test_an_old_driver_takes_launches_too(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without configurations: kernels are launched as ever, and nothing overlaps."""
    bare = device.driver.bare

    def old(name: str) -> object:
        if name == "cuLaunchKernelEx":
            raise LaunchError("the library has no cuLaunchKernelEx")
        return bare(name)

    monkeypatch.setattr(device.driver, "bare", old)
    module = device.load(PTX.encode())
    with device.stream() as stream:
        buffer, host = words(device, [1, 2, 3], stream)
        device.launch(module, "add_one", [1], 64, [buffer, 3], stream)  # type: ignore[list-item]
        with device.current(), pytest.raises(CudaError, match="cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS"):
            device.prepare(module, "add_one", [1], 64, [0, 3]).launch(stream)
        device.copy_out(host.ctypes.data, buffer, stream)  # type: ignore[arg-type]
    assert host.tolist() == [2, 3, 4] and shim(device, "shim_overlapping") == 0


def test_the_current_context_is_known_whoever_made_it_so(device: CudaDevice) -> None:
    is_current = device.calls().is_current
    assert not is_current()
    with device.current():
        assert is_current()
    driver = device.driver
    with driver._pushed:
        assert is_current()
    assert not is_current()
