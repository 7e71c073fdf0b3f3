"""The library of a GPU's driver, HIP's or CUDA's: calls of functions by name, and what the two call the same thing.

Both were made alike: a function gives a code, 0 where all went well, and puts its result where its first argument says.
What differs beside names is in hip_library.py and cuda_library.py.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from spconv_compiler.errors import LaunchError

SUCCESS, OUT_OF_MEMORY, NOT_READY = 0, 2, 600
STREAM_NON_BLOCKING, EVENT_DISABLE_TIMING = 1, 2
CAPTURE_THREAD_LOCAL = 1
POOL_RELEASE_THRESHOLD = 4


@dataclasses.dataclass(frozen=True)
class Names:
    """What a driver calls the functions that driver_objects.py needs. host_flags: of memory that kernels reach too."""

    stream_create: str
    stream_destroy: str
    stream_synchronize: str
    stream_query: str
    stream_wait: str
    event_create: str
    event_destroy: str
    event_record: str
    event_synchronize: str
    event_query: str
    event_elapsed: str
    host_allocate: str
    host_pointer: str
    host_free: str
    host_flags: int
    capture_begin: str
    capture_end: str
    graph_make: str
    graph_launch: str
    graph_destroy: str
    template_destroy: str
    pool_default: str
    pool_set: str
    pool_trim: str
    device_synchronize: str
    allocate: str
    allocate_later: str
    free_later: str


class DriverError(LaunchError):
    """A call of a driver failed.

    Attributes:
        call: the function. code, name, text: its result, as a number and as the driver calls and describes it.
    """

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({code}): {text}")
        self.call, self.code, self.name, self.text = call, code, name, text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.call, self.code, self.name, self.text)


class DriverLibrary:
    """A loaded library. Calls may be made from several threads.

    Attributes:
        path: where it was loaded from.
        signatures: types of the arguments of every function that is called. names: as the class says.
        accepted: which versions have them all, for messages.
    """

    signatures: ClassVar[Mapping[str, tuple[Any, ...]]]
    names: ClassVar[Names]
    accepted: ClassVar[str]

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._functions: dict[str, Any] = {}

    def code(self, name: str, *arguments: Any) -> int:
        """Calls a function and returns its result."""
        return int(self.function(name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function.

        Raises:
            DriverError: it fails.
        """
        code = self.code(name, *arguments)
        if code != SUCCESS:
            raise self.error(name, code)

    def value(self, kind: Any, name: str, *arguments: Any) -> Any:
        """Calls a function whose first argument is where its result goes; returns that, a ctypes type's value."""
        found = kind()
        self.call(name, ctypes.addressof(found), *arguments)
        return found.value

    def call_at_end(self, name: str, *arguments: Any) -> None:
        """Calls a function that releases something, where nobody can handle an error: it is logged."""
        code = self.code(name, *arguments)
        if code != SUCCESS:
            logging.getLogger("spconv_compiler").warning("%s", self.error(name, code))

    def failed(self, call: str, code: int) -> DriverError:
        """The exception for a call of `function` that has failed."""
        return self.error(call, code)

    def error(self, call: str, code: int) -> DriverError:
        """The exception for a result."""
        raise NotImplementedError

    def function(self, name: str) -> Any:
        """A function of the library, which takes and gives ctypes' plain values; for calls that must be quick.

        Raises:
            LaunchError: the library has none of that name.
        """
        found = self._functions.get(name)
        if found is None:
            try:
                found = self._library[name]
            except AttributeError:
                raise LaunchError(f"{self.path} has no {name}; accepted: {self.accepted}") from None
            found.argtypes, found.restype = list(self.signatures[name]), ctypes.c_int
            self._functions[name] = found
        return found

    def bare(self, name: str) -> Any:
        """As `function`, but it takes what ctypes need not convert, such as c_void_p.from_param gives.

        Raises:
            LaunchError: as `function`.
        """
        self.function(name)
        found = self._library[name]
        found.restype = ctypes.c_int
        return found


def passed(handle: int) -> Any:
    """A handle as functions of `DriverLibrary.bare` take it."""
    return ctypes.c_void_p.from_param(handle)


def decoded(text: bytes | None) -> str:
    """What a driver says of an error."""
    return "unknown" if text is None else text.decode(errors="replace")
