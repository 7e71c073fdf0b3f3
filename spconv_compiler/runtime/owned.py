"""What the objects of a GPU driver share: each owns a handle, and releases it once."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from spconv_compiler.errors import LaunchError

_Self = TypeVar("_Self", bound="Owned")


class Owned:
    """A handle of a driver and the duty to release it: by `close()`, at the end of a `with` block, or when collected.

    At the end of the process nothing is released: its library may be gone, and the driver takes all back.

    Attributes:
        releases: the functions that end its life, in order; they take the handle, and `stream` if there is one.
    """

    releases: tuple[str, ...]

    def __init__(self, driver: Any, handle: int, stream: Owned | None = None) -> None:
        self.driver = driver
        self._handle = handle
        # The arguments live as long as they are needed: a stream that this object's memory goes back through does.
        self._release = weakref.finalize(self, _release, driver.call_at_end, self.releases, handle, stream)
        self._release.atexit = False
        self._stream = stream

    @property
    def handle(self) -> int:
        """The handle as the driver knows it; raises LaunchError when it has been released."""
        self.require_open()
        return self._handle

    def require_open(self) -> None:
        """Raises LaunchError when the handle has been released."""
        if not self._release.alive:
            raise LaunchError(f"this {type(self).__name__} has been closed")

    def close(self) -> None:
        """Releases the handle; a second time does nothing.

        Raises:
            LaunchError: the driver refuses. The handle counts as released all the same.
        """
        if self._release.detach() is not None:
            _release(self.driver.call, self.releases, self._handle, self._stream)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # The error that is under way says more than one of the release.
            self._release()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected in the block: what is collected may release memory, or wait for a stream."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _release(call: Callable[..., None], names: tuple[str, ...], handle: int, stream: Owned | None) -> None:
    arguments = (handle,) if stream is None else (handle, stream.handle)
    with contextlib.ExitStack() as stack:
        # All are called even if one raises; a stack runs what was pushed last first.
        for name in reversed(names):
            stack.callback(call, name, *arguments)
