"""One call of a convolution on a device: on arrays in host memory, or on torch tensors that lie on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import Array, torch_module
from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.device import Buffer, Device, TorchDevice

# Where parts of one tensor begin.
_ALIGNMENT = 256

# Buffers that captured graphs of torch refer to, which only their user can know to be alive.
_captured: list[Buffer] = []


def forget_captured() -> None:
    """Lets go of buffers that captured graphs use."""
    _captured.clear()


class HostCall:
    """Uploads inputs, downloads results; all that it allocates or reads lives until the stream has done its work."""

    def __init__(self, device: Device, stream: Any) -> None:
        self.device, self.stream = device, stream
        self._held: list[Any] = []

    def allocate(self, name: str, nbytes: int, *, writable: bool = True) -> Buffer:
        buffer = self.device.allocate(name, nbytes, self.stream, writable=writable)
        self._held.append(buffer)
        return buffer

    def allocate_all(self, sizes: Mapping[str, int]) -> dict[str, Buffer]:
        """Uninitialised memory, in bytes by name, each piece its own: a device may check its ends."""
        return {name: self.allocate(name, nbytes) for name, nbytes in sizes.items()}

    def place(self, name: str, array: Array) -> Buffer:
        """The array's contents on the device, not to be written to."""
        buffer = self.allocate(name, array.nbytes, writable=False)
        # The copy reads it when its turn comes.
        self._held.append(array.source)
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
    """Memory of a tensor, or a part of it.

    Attributes:
        made: what says that the work is done that was queued when it was made, and the stream of that work; None for
            what the caller passed in.
    """

    def __init__(self, tensor: Any, pointer: int, nbytes: int, made: _Made | None = None) -> None:
        self.tensor, self.pointer, self.nbytes, self.made = tensor, pointer, nbytes, made


class _Made:
    """Work of one call that others may wait for."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.event: Any = None


class TensorCall:
    """Runs on torch's current stream, in torch's memory, and waits for nothing.

    With `tensor_call(share=True)` a later call on another stream waits on the device for what this one makes.
    """

    def __init__(self, device: TorchDevice, torch: Any, stream: Any) -> None:
        self.device, self._torch, self._stream = device, torch, stream
        self.stream = int(stream.cuda_stream)
        self._made = _Made(self.stream)

    def allocate(self, name: str, nbytes: int, *, writable: bool = True) -> Buffer:
        tensor = self._memory(name, nbytes)
        return _TensorBuffer(tensor, tensor.data_ptr(), nbytes, self._made)

    def allocate_all(self, sizes: Mapping[str, int]) -> dict[str, Buffer]:
        """Uninitialised memory, in bytes by name: parts of one tensor, which lives as long as any of them."""
        places, end = [], 0
        for nbytes in sizes.values():
            places.append(end)
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if not places:
            return {}
        whole = self._memory(", ".join(sizes), end)
        start = whole.data_ptr()
        return {
            name: _TensorBuffer(whole, start + place, nbytes, self._made)
            for (name, nbytes), place in zip(sizes.items(), places, strict=True)
        }

    def _memory(self, name: str, nbytes: int) -> Any:
        place = f"cuda:{self.device.index}"
        try:
            return self._torch.empty(max(1, nbytes), dtype=self._torch.uint8, device=place)
        except RuntimeError as error:
            raise LaunchError(f"{nbytes} bytes for {name} on GPU {self.device.index}: {error}") from error

    def place(self, name: str, array: Array) -> Buffer:
        """The tensor where it lies."""
        return _TensorBuffer(array.source, array.pointer, array.nbytes)

    def output(self, name: str, pointer: int, nbytes: int) -> Buffer:
        """The result's own memory."""
        return _TensorBuffer(None, pointer, nbytes)

    def deliver(self, buffer: Buffer, pointer: int) -> None:
        """Nothing: the result is where it belongs."""

    def use(self, kept: Mapping[str, Buffer]) -> Mapping[str, Buffer]:
        """What earlier calls made; work on this stream comes after theirs, and torch is told that it reads it."""
        capturing = self._torch.cuda.is_current_stream_capturing()
        if capturing:
            # A capture begins when the device has nothing left to do, and cannot wait for what came before it.
            _captured.extend(kept.values())
        told: set[int] = set()
        for buffer in kept.values():
            if not isinstance(buffer, _TensorBuffer) or buffer.made is None or id(buffer.tensor) in told:
                continue
            told.add(id(buffer.tensor))
            if buffer.made.stream != self.stream:
                buffer.tensor.record_stream(self._stream)
                if buffer.made.event is not None and not capturing:
                    self._stream.wait_event(buffer.made.event)
        return kept

    def share(self) -> None:
        """Lets calls on other streams wait for the work queued so far."""
        self._made.event = self._torch.cuda.Event()
        self._made.event.record(self._stream)


@contextlib.contextmanager
def host_call(device: Device) -> Iterator[HostCall]:
    """A call on host arrays; when the block ends, its work is done."""
    with device.stream() as stream:
        # The local variable outlives this block, so that the call's buffers outlive the work.
        call = HostCall(device, stream)
        yield call


@contextlib.contextmanager
def tensor_call(device: TorchDevice, *, share: bool) -> Iterator[TensorCall]:
    """A call on tensors; `share`: what it makes is for later calls, on any stream."""
    torch: Any = torch_module()
    with device.current():
        call = TensorCall(device, torch, torch.cuda.current_stream(device.index))
        yield call
        if share:
            call.share()


def read(
    call: HostCall | TensorCall, buffer: Buffer, dtype: npt.DTypeLike, count: int | None = None
) -> npt.NDArray[Any]:
    """The contents of a buffer, or its first `count` elements; waits for them."""
    found = np.empty(buffer.nbytes // np.dtype(dtype).itemsize if count is None else count, dtype)
    if found.size:
        call.device.copy_out(found.ctypes.data, buffer, call.stream, found.nbytes)
    call.device.synchronize(call.stream)
    return found
