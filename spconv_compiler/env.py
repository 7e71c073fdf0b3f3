"""Every environment variable of this package, and the only file that reads `os.environ`.

Each variable is a typed descriptor; `VARIABLE.get()` reads the environment at the time of the call, so a
value changed by the program (or by a test) takes effect at once. An empty value means "not set". A value
that does not parse raises `InputError` naming the variable, what was found and what is accepted.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from spconv_compiler.errors import InputError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclasses.dataclass(frozen=True)
class Variable(Generic[T_co]):
    """One environment variable.

    Attributes:
        name: the name in the environment.
        parse: text to value; raises ValueError for text that is not accepted.
        default: computes the value that holds when the variable is not set.
        accepts: what `parse` accepts, in words.
        description: one sentence for users.
    """

    name: str
    parse: Callable[[str], T_co]
    default: Callable[[], T_co]
    accepts: str
    description: str

    def get(self) -> T_co:
        """The current value.

        Raises:
            InputError: the text in the environment is not accepted.
        """
        text = self.text()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except (ValueError, RuntimeError) as error:  # RuntimeError: "~" where there is no home directory
            raise InputError(f"{self.name}={text!r} is not accepted; accepted: {self.accepts}") from error

    def text(self) -> str:
        """What the environment says, not parsed; "" where it says nothing."""
        # os.environ takes two exceptions to say that it has nothing; the dictionary that it is made of takes none.
        if self._key not in getattr(os.environ, "_data", (self._key,)):
            return ""
        try:
            return os.environ[self.name].strip()
        except KeyError:
            return ""

    @functools.cached_property
    def _key(self) -> object:
        """The name as os.environ keeps it."""
        return getattr(os.environ, "encodekey", str)(self.name)

    def set(self, text: str) -> None:
        """Sets the variable for this process and the processes it starts, as command-line options do.

        Raises:
            InputError: the text is not accepted; nothing is changed.
        """
        try:
            self.parse(text)
        except (ValueError, RuntimeError) as error:
            raise InputError(f"{self.name}={text!r} is not accepted; accepted: {self.accepts}") from error
        os.environ[self.name] = text

    def is_set(self) -> bool:
        """Whether the environment gives a value (an empty one does not count)."""
        return bool(self.text())


def _always(value: T) -> Callable[[], T]:
    return lambda: value


def _parse_switch(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("on", "1", "true", "yes"):
        return True
    if lowered in ("off", "0", "false", "no"):
        return False
    raise ValueError(text)


def _parse_positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _parse_path(text: str) -> Path:
    return Path(text).expanduser()


def _parse_level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(text)
    return text.lower()


def _user_cache_dir() -> Path | None:
    # Imported here because most programs set SPCONV_CACHE_DIR or never reach the disk cache.
    import platformdirs

    try:
        path = Path(platformdirs.user_cache_dir("spconv_compiler", appauthor=False))
    except RuntimeError:  # there is no home directory
        return None
    # Older releases of platformdirs give a path below "~" then: no place, rather than a folder of that name.
    return path if path.is_absolute() else None


def _available_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


_SWITCH = "on, off, 1, 0, true, false, yes, no"

CACHE: Variable[bool] = Variable(
    "SPCONV_CACHE", _parse_switch, _always(True), _SWITCH, "Keep compiled kernels on disk."
)
CACHE_DIR: Variable[Path | None] = Variable(
    "SPCONV_CACHE_DIR",
    _parse_path,
    _user_cache_dir,
    "the path of a directory; it is made when missing",
    "Where compiled kernels are kept; by default the user's cache directory.",
)
CACHE_MAX_MB: Variable[int] = Variable(
    "SPCONV_CACHE_MAX_MB",
    _parse_positive,
    _always(1024),
    "a whole number of megabytes, at least 1",
    "Size bound of the disk cache; the least recently used kernels go first.",
)
LLD: Variable[Path | None] = Variable(
    "SPCONV_LLD",
    _parse_path,
    _always(None),
    "the path of an ld.lld executable",
    "The linker to use instead of searching ROCm, PATH and the ziglang wheel.",
)
TARGET: Variable[str] = Variable(
    "SPCONV_TARGET", str, _always("auto"), "auto or a target's name", "The target when the call names none."
)
DUMP_DIR: Variable[Path | None] = Variable(
    "SPCONV_DUMP_DIR",
    _parse_path,
    _always(None),
    "the path of a directory; it is made when missing",
    "Write the IR after every pass, and the line that replays it, below this directory.",
)
PRINT_AFTER: Variable[str] = Variable(
    "SPCONV_PRINT_AFTER",
    str,
    _always(""),
    "all, or the name of a pass",
    "Print the IR to stderr after this pass.",
)
VERIFY: Variable[bool] = Variable(
    "SPCONV_VERIFY", _parse_switch, _always(True), _SWITCH, "Check the rule of each level between stages."
)
NUM_THREADS: Variable[int] = Variable(
    "SPCONV_NUM_THREADS",
    _parse_positive,
    _available_cores,
    "a whole number, at least 1",
    "Threads of the CPU kernels; by default the cores this process may use.",
)
LOG: Variable[str] = Variable(
    "SPCONV_LOG", _parse_level, _always("warning"), ", ".join(LOG_LEVELS), "The least severe message shown."
)
ROCM_PATH: Variable[Path] = Variable(
    "ROCM_PATH",
    _parse_path,
    _always(Path("/opt/rocm")),
    "the path of a directory",
    "The ROCm installation whose linker and HIP runtime are used.",
)
HIP: Variable[Path | None] = Variable(
    "SPCONV_HIP",
    _parse_path,
    _always(None),
    "the path of libamdhip64.so",
    "The HIP runtime to use instead of searching the process, the loader's path and ROCM_PATH.",
)
CUDA: Variable[Path | None] = Variable(
    "SPCONV_CUDA",
    _parse_path,
    _always(None),
    "the path of libcuda.so.1",
    "NVIDIA's driver library to use instead of the one in the loader's path.",
)
CUDA_OVERLAP: Variable[bool] = Variable(
    "SPCONV_CUDA_OVERLAP",
    _parse_switch,
    _always(True),
    _SWITCH,
    "Let a kernel on an NVIDIA GPU be started while the one before it runs out.",
)
BUNDLE: Variable[Path | None] = Variable(
    "SPCONV_BUNDLE",
    _parse_path,
    _always(None),
    "the path of a directory",
    "A folder of kernels compiled ahead of time (bundle.py), looked in before anything is compiled.",
)

VARIABLES: tuple[Variable[object], ...] = (
    CACHE,
    CACHE_DIR,
    CACHE_MAX_MB,
    LLD,
    TARGET,
    DUMP_DIR,
    PRINT_AFTER,
    VERIFY,
    NUM_THREADS,
    LOG,
    ROCM_PATH,
    HIP,
    CUDA,
    CUDA_OVERLAP,
    BUNDLE,
)


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "(none)" if value in (None, "") else str(value)


def _current(variable: Variable[object]) -> str:
    try:
        return _show(variable.get()) + ("" if variable.is_set() else " (default)")
    except InputError as error:
        return f"(bad value: {error})"


def describe() -> str:
    """All variables as text: name, current value, meaning, accepted. A bad value is shown, not raised."""
    lines = []
    for variable in VARIABLES:
        lines.append(f"{variable.name} = {_current(variable)}")
        lines.append(f"    {variable.description}")
        lines.append(f"    accepted: {variable.accepts}")
    return "\n".join(lines)
