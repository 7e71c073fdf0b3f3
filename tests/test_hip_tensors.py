"""Tensors on a GPU, as torch for ROCm has them: a stand-in for the device, whose memory is the shim's.

The stand-in knows its operations only through torch's dispatcher: it fetches what they read, runs them on the host and
puts the results back. What the convolution does to tensors is thus seen, and so is every wait.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import Case, make_case, mismatch, voxels
from hip_harness import Shim
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import spconv_compiler as sc
from spconv_compiler import driver_gpu
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.runtime import calls
from spconv_compiler.runtime.hip import DeviceMemory, Event, Stream, capture
from spconv_compiler.runtime.hip_library import DEVICE_TO_HOST, HOST_TO_DEVICE, HipLibrary


class GpuTensor(torch.Tensor):
    """A tensor on the stand-in."""

    gpu: Gpu
    memory: DeviceMemory
    begin: int

    @staticmethod
    def __new__(cls, gpu: Gpu, like: torch.Tensor, whole: GpuTensor | None = None, begin: int = 0) -> GpuTensor:
        made = torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=f"cuda:{gpu.index}")
        made.gpu, made.begin = gpu, begin
        if whole is not None:
            made.memory = whole.memory
            return made
        made.memory = DeviceMemory(gpu.hip, max(1, like.numel() * like.element_size()))
        # As torch's own: memory that is free goes to the next tensor, not back to HIP, which would wait.
        gpu.pool.append(made.memory)
        return made

    def data_ptr(self) -> int:
        return self.memory.pointer + self.begin

    def rows(self, first: int, end: int) -> GpuTensor:
        """A part of the same memory."""
        count = self.shape[0]
        first, end = min(first, count), min(end, count)
        like = torch.empty((end - first, *self.shape[1:]), dtype=self.dtype)
        row_bytes = self.element_size() * (self.numel() // max(1, count))
        return GpuTensor(self.gpu, like, self, self.begin + first * row_bytes)

    def record_stream(self, stream: Any) -> None:
        self.gpu.recorded.append(stream.cuda_stream)

    def tolist(self) -> Any:
        return self.gpu.fetch(self).tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        flat = pytree.tree_leaves((arguments, keywords))
        gpu = next(item.gpu for item in flat if isinstance(item, GpuTensor))
        if function is torch.ops.aten.slice.Tensor and len(arguments) == 4 and arguments[1] == 0:
            return arguments[0].rows(*arguments[2:])
        keywords = dict(keywords or {})
        if function is torch.ops.aten.new_empty.default:
            # Memory alone: nothing is waited for.
            return GpuTensor(gpu, torch.empty(arguments[1], dtype=keywords.get("dtype") or arguments[0].dtype))
        to_host = keywords.pop("device", None) == torch.device("cpu")
        host = pytree.tree_map_only(GpuTensor, gpu.fetch, (arguments, keywords))
        result = function(*host[0], **host[1])
        for place, argument in enumerate(function._schema.arguments[: len(arguments)]):
            if argument.alias_info is not None and argument.alias_info.is_write and result is host[0][place]:
                gpu.write(arguments[place], result)
                return arguments[place]
        names = [item.name for item in function._schema.arguments if item.alias_info is not None]
        if names and all(name in keywords for name in names):
            for name in names:
                gpu.write(keywords[name], host[1][name])
            return tuple(keywords[name] for name in names)
        return result if to_host else pytree.tree_map_only(torch.Tensor, gpu.put, result)


class Gpu(TorchFunctionMode):
    """The stand-in: torch's side of a device. In force while it is entered."""

    def __init__(self, hip: HipLibrary, stream: Stream, index: int = 0) -> None:
        super().__init__()
        self.hip, self.current, self.index = hip, stream, index
        self.pool: list[DeviceMemory] = []
        self.recorded: list[int] = []
        self.capturing = False

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = dict(keywords or {})
        if str(keywords.get("device", "")) == f"cuda:{self.index}" and function is torch.empty:
            return GpuTensor(self, torch.empty(*arguments, dtype=keywords["dtype"]))
        if function is torch.Tensor.to and arguments[1:] == (f"cuda:{self.index}",):
            return self.put(arguments[0])
        if str(keywords.get("device", "")) == f"cuda:{self.index}" and function is torch.arange:
            return self.put(torch.arange(*arguments))
        return function(*arguments, **keywords)

    def put(self, tensor: torch.Tensor) -> GpuTensor:
        """A copy on the device; done."""
        made = GpuTensor(self, tensor)
        self.write(made, tensor)
        return made

    def write(self, made: GpuTensor, tensor: torch.Tensor) -> None:
        """Puts a tensor's contents where another lies; done."""
        host = tensor.contiguous()
        if host.numel():
            self._copy(made.data_ptr(), host.data_ptr(), host, HOST_TO_DEVICE)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host, after all work on the current stream."""
        assert isinstance(tensor, GpuTensor)
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        if host.numel():
            self._copy(host.data_ptr(), tensor.data_ptr(), host, DEVICE_TO_HOST)
        return host

    def _copy(self, target: int, source: int, host: torch.Tensor, direction: int) -> None:
        nbytes = host.numel() * host.element_size()
        self.hip.call("hipMemcpyAsync", target, source, nbytes, direction, self.current.handle)
        self.current.synchronize()


class _TorchStream:
    def __init__(self, hip: HipLibrary, handle: int) -> None:
        self._hip, self.cuda_stream = hip, handle

    def wait_event(self, event: _TorchEvent) -> None:
        self._hip.call("hipStreamWaitEvent", self.cuda_stream, event.made.handle, 0)


class _TorchEvent:
    def __init__(self, hip: HipLibrary) -> None:
        self.made = Event(hip)

    def record(self, stream: _TorchStream) -> None:
        self.made.driver.call("hipEventRecord", self.made.handle, stream.cuda_stream)


@pytest.fixture
def gpu(hip: HipLibrary, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    found = Gpu(hip, stream)
    monkeypatch.setattr(torch.version, "hip", "7.0", raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: _TorchStream(hip, found.current.handle))
    monkeypatch.setattr(torch.cuda, "Event", lambda: _TorchEvent(hip))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.capturing)
    with found:
        yield found
    found.pool.clear()


def small(rows: int = 30, **others: Any) -> Case:
    coords = voxels(rows, 5, batches=2) - np.array([0, 3, 5, 4], np.int32)
    return make_case(coords, 3, 16, 32, dtype="bf16", whole=True, **others)


def on_gpu(gpu: Gpu, case: Case) -> list[Any]:
    return [None if value is None else gpu.put(value) for value in case.tensors()]


def convolve(arguments: list[Any], **others: Any) -> Any:
    return sc.subm_conv3d(*arguments, target="gfx950", schedule="pairs_m16", **others)


@pytest.mark.parametrize("bias", [False, True])
def test_result_on_the_device(gpu: Gpu, bias: bool) -> None:
    case = small(bias=bias)
    out = convolve(on_gpu(gpu, case))
    assert isinstance(out, GpuTensor) and out.dtype == torch.bfloat16
    assert mismatch(gpu.fetch(out), case, whole=True) is None


def test_nothing_is_waited_for_once_the_map_exists(gpu: Gpu, shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    # Addresses of the stand-in can be read on the host; those of a GPU cannot.
    monkeypatch.setattr(driver_gpu, "bytes_at", None)
    arguments = on_gpu(gpu, small())
    convolve(arguments)
    gpu.current.synchronize()
    shim.launched.clear()
    out = convolve(arguments)
    assert shim.launched == [], "work was run before anybody asked for it"
    first = gpu.fetch(out)
    assert [name.partition("_")[0] for name in shim.launched] == ["fill", "gemm", "apply"]
    assert mismatch(first, small(), whole=True) is None


def test_kept_buffers_on_another_stream(gpu: Gpu, hip: HipLibrary) -> None:
    """Map and weights are complete when the first call returns, and torch learns who else reads them."""
    arguments = on_gpu(gpu, small())
    convolve(arguments)
    gpu.recorded.clear()
    with Stream(hip) as other:
        gpu.current = other
        out = convolve(arguments)
        assert set(gpu.recorded) == {other.handle}
        assert mismatch(gpu.fetch(out), small(), whole=True) is None


def test_a_convolution_is_captured(gpu: Gpu) -> None:
    """After a first call, nothing in it is illegal in a capture; what the graph reads stays alive with it."""
    case = small()
    arguments = on_gpu(gpu, case)
    convolve(arguments)
    out = gpu.put(torch.zeros(30, 32, dtype=torch.bfloat16))
    # torch gives memory from its own pool in a capture; the stand-in has to have it before.
    made = iter([out, gpu.put(torch.zeros(30 * 32 * 4, dtype=torch.uint8))])
    new_empty, GpuTensor.new_empty = GpuTensor.new_empty, lambda self, *_, **__: next(made)
    allocate, calls.TensorCall.allocate_all = calls.TensorCall.allocate_all, _give(made)
    gpu.capturing = True
    try:
        with capture(gpu.current) as captured:
            assert convolve(arguments) is out
    finally:
        gpu.capturing, GpuTensor.new_empty, calls.TensorCall.allocate_all = False, new_empty, allocate
    assert len(calls._captured) > 0
    assert not gpu.fetch(out).any()
    with captured.graph as graph:
        graph.launch(gpu.current)
        assert mismatch(gpu.fetch(out), case, whole=True) is None
    sc.clear_caches()
    assert calls._captured == []


def _give(made: Iterator[GpuTensor]) -> Any:
    def allocate_all(self: Any, sizes: Any) -> Any:
        found = {}
        for name, nbytes in sizes.items():
            tensor = next(made)
            assert nbytes <= tensor.memory.nbytes
            found[name] = calls._TensorBuffer(tensor, tensor.data_ptr(), nbytes)
        return found

    return allocate_all


def test_coordinates_of_other_shapes(gpu: Gpu) -> None:
    coords, features, weight, _ = small(20).tensors()
    narrow = torch.unique(coords[:, 1:], dim=0)
    rows = len(narrow)
    case = make_case(torch.nn.functional.pad(narrow, (1, 0)).numpy(), 3, 16, 32, dtype="bf16", whole=True)
    _, features, weight, _ = case.tensors()
    for given in (narrow, narrow.long()):
        out = convolve([gpu.put(given), gpu.put(features), gpu.put(weight)])
        assert out.shape == (rows, 32) and mismatch(gpu.fetch(out), case, whole=True) is None


def test_coordinates_out_of_range(gpu: Gpu) -> None:
    arguments = on_gpu(gpu, small())
    with pytest.raises(InputError, match=r"\d+ coords are out of range, the first in row"):
        convolve(arguments, spatial_shape=(1, 1, 1))
    far = gpu.put(small().tensors()[0].long() + 2**40)
    with pytest.raises(InputError, match="30 coords are outside int32"):
        convolve([far, *arguments[1:]])


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "features are on GPU 0 but coords is on the cpu"),
        (1, "features are on the cpu but coords is on GPU 0"),
        (2, "features are on GPU 0 but weight is on the cpu"),
        (3, "features are on GPU 0 but bias is on the cpu"),
    ],
)
def test_one_place_for_all(gpu: Gpu, number: int, message: str) -> None:
    mixed = on_gpu(gpu, small(bias=True))
    mixed[number] = small(bias=True).tensors()[number]
    with pytest.raises(InputError, match=f"{message}; accepted: one place for all"):
        convolve(mixed)


@pytest.mark.parametrize("target", ["cpu", "gfx950-sim"])
def test_targets_that_take_host_arrays(gpu: Gpu, target: str) -> None:
    with pytest.raises(InputError, match="tensors lie on a .*; accepted by target .*: tensors on the cpu"):
        sc.subm_conv3d(*on_gpu(gpu, small()), target=target)


def test_tensors_of_another_vendor(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    with pytest.raises(InputError, match="tensors lie on a GPU behind cuda; accepted by target gfx950: behind hip"):
        convolve(on_gpu(gpu, small()))


def test_another_gpu_than_the_first(hip: HipLibrary, shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors' device is current during the call, and the caller's after it."""
    shim.configure(devices=2)
    monkeypatch.setattr(torch.version, "hip", "7.0", raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with Stream(hip) as stream, Gpu(hip, stream, index=1) as gpu:
        seen = []

        def current(index: int) -> _TorchStream:
            seen.append((index, int(hip.value(ctypes.c_int, "hipGetDevice"))))
            return _TorchStream(hip, stream.handle)

        monkeypatch.setattr(torch.cuda, "current_stream", current)
        monkeypatch.setattr(torch.cuda, "Event", lambda: _TorchEvent(hip))
        assert mismatch(gpu.fetch(convolve(on_gpu(gpu, small()))), small(), whole=True) is None
        assert set(seen) == {(1, 1)} and int(hip.value(ctypes.c_int, "hipGetDevice")) == 0


def test_memory_that_torch_does_not_give(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = on_gpu(gpu, small())

    empty = torch.empty

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        if keywords["dtype"] == torch.uint8:
            raise RuntimeError("HIP out of memory. Tried to allocate 7 GiB")
        return empty(*arguments, **keywords)

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(LaunchError, match=r"bytes for [\w, ]+ on GPU 0: HIP out of memory"):
        convolve(arguments)
