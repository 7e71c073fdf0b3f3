"""One call of a convolution on a device: on arrays in host memory, or on torch tensors that lie on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import Array, torch_module
from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.device import Buffer, Device
from spconv_compiler.runtime.hip_device import HipDevice

# Buffers that captured graphs of torch refer to, which only their user can know to be alive.
_captured: list[Buffer] = []


def forget_captured() -> None:
    """Lets go of buffers that captured graphs use."""
    _captured.clear()


class HostCall:
    """Uploads inputs, downloads results; everything it allocates lives until the stream has done its work."""

    def __init__(self, device: Device, stream: Any) -> None:
        self.device, self.stream = device, stream
        self._held: list[Buffer] = []

    def allocate(self, name: str, nbytes: int, *, writable: bool = True) -> Buffer:
        buffer = self.device.allocate(name, nbytes, self.stream, writable=writable)
        self._held.append(buffer)
        return buffer

    def place(self, name: str, array: Array) -> Buffer:
        """The array's contents on the device, not to be written to."""
        buffer = self.allocate(name, array.nbytes, writable=False)
        self.device.copy_in(buffer, array.pointer, self.stream)
        return buffer

    def output(self, name: str, pointer: int, nbytes: int) -> Buffer:
        """Where kernels write what `deliver` brings to the host address `pointer`."""
        return self.allocate(name, nbytes)

    def deliver(self, buffer: Buffer, pointer: int) -> None:
        """Brings a result to where the caller wants it, once the call ends."""
        self.device.copy_out(pointer, buffer, self.stream)

    def use(self, kept: Mapping[str, Buffer]) -> Mapping[str, Buffer]:
        """What earlier calls made, ready to be read; the caller holds it."""
        return kept


class _TensorBuffer:
    """Memory of a tensor."""

    def __init__(self, tensor: Any, pointer: int, nbytes: int) -> None:
        self.tensor, self.pointer, self.nbytes = tensor, pointer, nbytes


class TensorCall:
    """Runs on torch's current stream, in torch's memory, and waits for nothing.

    What it makes to be kept is waited for once by `tensor_call(wait=True)`, so that any stream may read it later.
    """

    def __init__(self, device: HipDevice, torch: Any, stream: Any) -> None:
        self.device, self._torch, self._stream = device, torch, stream
        self.stream = int(stream.cuda_stream)

    def allocate(self, name: str, nbytes: int, *, writable: bool = True) -> Buffer:
        place = f"cuda:{self.device.index}"
        try:
            tensor = self._torch.empty(max(1, nbytes), dtype=self._torch.uint8, device=place)
        except RuntimeError as error:
            raise LaunchError(f"{nbytes} bytes for {name} on GPU {self.device.index}: {error}") from error
        return _TensorBuffer(tensor, tensor.data_ptr(), nbytes)

    def place(self, name: str, array: Array) -> Buffer:
        """The tensor where it lies."""
        return _TensorBuffer(array.source, array.pointer, array.nbytes)

    def output(self, name: str, pointer: int, nbytes: int) -> Buffer:
        """The result's own memory."""
        return _TensorBuffer(None, pointer, nbytes)

    def deliver(self, buffer: Buffer, pointer: int) -> None:
        """Nothing: the result is where it belongs."""

    def use(self, kept: Mapping[str, Buffer]) -> Mapping[str, Buffer]:
        """What earlier calls made; torch is told that this stream reads it."""
        capturing = self._torch.cuda.is_current_stream_capturing()
        for buffer in kept.values():
            if isinstance(buffer, _TensorBuffer):
                buffer.tensor.record_stream(self._stream)
                if capturing:
                    _captured.append(buffer)
        return kept


@contextlib.contextmanager
def host_call(device: Device) -> Iterator[HostCall]:
    """A call on host arrays; when the block ends, its work is done."""
    with device.stream() as stream:
        # The local variable outlives this block, so that the call's buffers outlive the work.
        call = HostCall(device, stream)
        yield call


@contextlib.contextmanager
def tensor_call(device: HipDevice, *, wait: bool) -> Iterator[TensorCall]:
    """A call on tensors; `wait`: when the block ends, its work is done."""
    torch: Any = torch_module()
    with device.current():
        call = TensorCall(device, torch, torch.cuda.current_stream(device.index))
        yield call
        if wait:
            device.synchronize(call.stream)


def read(call: HostCall | TensorCall, buffer: Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The contents of a buffer; waits for them."""
    found = np.empty(buffer.nbytes // np.dtype(dtype).itemsize, dtype)
    call.device.copy_out(found.ctypes.data, buffer, call.stream)
    call.device.synchronize(call.stream)
    return found
