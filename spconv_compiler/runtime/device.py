"""What the executor of launch plans asks of a device: a GPU behind HIP (hip_device.py) or the simulator (sim.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from spconv_compiler.runtime.prepared import DriverCalls, PreparedLaunch


class Buffer(Protocol):
    """Memory on a device; it is given back when its last owner is gone.

    Attributes:
        pointer: address on the device. nbytes: size.
    """

    @property
    def pointer(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Device(Protocol):
    """A GPU. Work on one stream runs in order; a stream is whatever `stream()` gives.

    Every method raises LaunchError (HipError, or the simulator's own errors) when the device refuses or fails.
    """

    @property
    def name(self) -> str:
        """What it is, for messages."""

    def load(self, code: bytes) -> Any:
        """A code object, for `launch`."""

    def stream(self) -> AbstractContextManager[Any]:
        """A stream for one call. When the block ends, in whatever way, all work on it is done."""

    def allocate(self, name: str, nbytes: int, stream: Any, *, writable: bool = True) -> Buffer:
        """Uninitialised memory. name, and whether kernels may write to it, serve a device that checks them."""

    def copy_in(self, buffer: Buffer, source: int, stream: Any) -> None:
        """Fills a buffer from the host address `source`; what lies there stays until the stream is done."""

    def copy_out(self, target: int, buffer: Buffer, stream: Any, nbytes: int | None = None) -> None:
        """Copies a buffer, or its first nbytes, to the host address `target`."""

    def launch(
        self, module: Any, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Buffer | int], stream: Any
    ) -> None:
        """Runs a kernel on buffers and numbers."""

    def synchronize(self, stream: Any) -> None:
        """Waits until the work on a stream is done."""


class Graph(Protocol):
    """Work that was captured once. The memory that it touches must live as long as it is launched."""

    def launch(self, stream: int) -> None:
        """Queues it on a stream."""


class Event(Protocol):
    """A mark in a stream."""

    def record(self, stream: int) -> None:
        """Sets it behind all work queued so far."""

    def synchronize(self) -> None:
        """Waits until it is reached."""


class HostWords(Protocol):
    """Words of host memory that kernels reach too.

    Attributes:
        words: i32, as the host sees them. pointer: their address on the device. nbytes: their size.
    """

    @property
    def words(self) -> Any: ...

    @property
    def pointer(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class StreamWords(Protocol):
    """Two words of 64 bits on the device that a stream writes, with the values that `words` has at `places` then.

    Attributes:
        pointer: their address on the device. nbytes: their size.
    """

    places: tuple[int, int]
    nbytes: int

    @property
    def words(self) -> Any: ...

    @property
    def pointer(self) -> int: ...

    def write(self, stream: int) -> None:
        """Queues the write; values may be changed when this returns."""

    def bare(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """(a function of driver_library.passed(a stream) and of these, which gives the driver's code, these)."""

    def failed(self, code: int) -> Exception:
        """The exception for a code that is not 0."""


class TorchDevice(Device, Protocol):
    """A device on which torch's tensors may lie, behind a driver that has graphs.

    Attributes:
        index: its number, torch's and the driver's.
    """

    index: int

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copies between addresses on the device."""

    def copy_columns(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int
    ) -> None:
        """Copies `width` bytes of each row between addresses on the device; pitches: bytes from row to row."""

    def fill_words(self, target: int, word: int, count: int, stream: int) -> None:
        """Sets `count` i32 words at an address."""

    def calls(self) -> DriverCalls:
        """What the driver does on handles of graphs, streams and events."""

    def host_words(self, count: int) -> HostWords:
        """`count` words, all 0."""

    def stream_words(self) -> StreamWords | None:
        """Two words that streams write, or None where they cannot."""

    def event(self) -> Event:
        """A mark without a time."""

    def wait_event(self, stream: int, event: Any) -> None:
        """Lets work that is queued on a stream from now on wait for an event."""

    def prepare(
        self, module: Any, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Buffer | int]
    ) -> PreparedLaunch:
        """A launch that is queued again and again with other arguments here and there; as `launch`."""

    def capture(self, queue: Callable[[int], None]) -> Graph:
        """What `queue` queues on the stream that it is given, as a graph; none of it is run.

        In `queue`, memory can neither be allocated nor waited for.
        """

    def current(self) -> AbstractContextManager[None]:
        """Makes this the thread's current device in the block."""
