"""Finds `ld.lld`, gives it the folder layout that MLIR wants, and links x86 objects into a shared library.

The search order is: SPCONV_LLD, ROCm, names on PATH, the ziglang wheel. A linker older than LLD 19 is
passed over, because it refuses code objects of AMDGPU ABI 6 ("unknown abi version"). Asking a linker for its
version starts a process, so the answer is kept in the cache directory under the path, size and time of the
executable: a process that finds it there starts nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from spconv_compiler import env
from spconv_compiler.errors import CodegenError, ToolchainError
from spconv_compiler.scratch_room import require_room

MIN_MAJOR = 19
PATH_NAMES = ("ld.lld", *(f"ld.lld-{major}" for major in range(24, MIN_MAJOR - 1, -1)))
_TIMEOUT_S = 120.0

_lock = threading.Lock()
_versions: dict[str, str] = {}
_private_toolkits: dict[str, Path] = {}


@dataclasses.dataclass(frozen=True)
class Linker:
    """One usable `ld.lld`.

    Attributes:
        path: the executable.
        arguments: what comes before the linker's own arguments (`ld.lld` for the zig executable).
        source: which of the four places it was found in.
        version: first line of its `--version`.
        identity: path, size and modification time; part of the cache key.
    """

    path: Path
    arguments: tuple[str, ...]
    source: str
    version: str
    identity: str

    @property
    def command(self) -> list[str]:
        """The start of a command line that runs this linker."""
        return [str(self.path), *self.arguments]


def find_linker() -> Linker:
    """The first usable linker in the search order.

    Raises:
        ToolchainError: SPCONV_LLD names something unusable, or no place has a usable linker; the message
            names the four places and what each one had.
    """
    explicit = env.LLD.get()
    if explicit is not None:
        return _probe(explicit, (), "SPCONV_LLD")
    findings = ["SPCONV_LLD: not set"]
    for source, path, arguments, missing in _places():
        if path is None:
            findings.append(f"{source}: {missing}")
            continue
        try:
            return _probe(path, arguments, source)
        except ToolchainError as error:
            findings.append(str(error))
    lines = "".join(f"\n  {line}" for line in findings)
    raise ToolchainError(
        f"no usable ld.lld (LLD {MIN_MAJOR} or newer); looked in:{lines}\n"
        "Install the wheel with `pip install ziglang`, or set SPCONV_LLD to the path of an ld.lld."
    )


def linker_identity() -> str:
    """Path, size and time of the linker that would be used, or "missing".

    Raises:
        ToolchainError: SPCONV_LLD names something unusable.
    """
    try:
        return find_linker().identity
    except ToolchainError:
        if env.LLD.is_set():
            raise
        return "missing"


def linker_version() -> str:
    """The version line of the linker that would be used: "LLD 22.1.8 (compatible with GNU linkers)"."""
    return find_linker().version


def toolkit_dir() -> Path:
    """A folder with `llvm/bin/ld.lld` in it, for `gpu-module-to-binary{toolkit="<folder>"}`.

    It lies under the cache directory, or in a temporary directory of this process where the cache directory
    cannot be written or executed from.

    Raises:
        ToolchainError: no usable linker, or no room for temporary files where they are needed.
    """
    linker = find_linker()
    if linker.path.parts[-3:] == ("llvm", "bin", "ld.lld"):
        return linker.path.parents[2]
    root = _root()
    if root is not None:
        shared = root / "toolkit" / _digest(linker.identity)
        if _holds(shared, linker) or _publish(shared, linker):
            return shared
    with _lock:
        private = _private_toolkits.get(linker.identity)
        if private is None or not _holds(private, linker):
            private = _private_toolkits[linker.identity] = _make_private(linker)
        return private


def link_shared(objects: Sequence[Path], output: Path) -> None:
    """Links x86 ELF objects (made with `enable_pic=True`) into the shared library `output`, atomically.

    Symbols that no object defines (libm's `expf`) stay open and are resolved when the library is loaded.

    Raises:
        ToolchainError: no usable linker.
        CodegenError: the linker refused; the message holds the command and what it printed.
    """
    linker = find_linker()
    output = output.absolute()
    partial = output.with_name(f"{output.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    command = [*linker.command, "-shared", "-o", str(partial), *(str(path.absolute()) for path in objects)]
    try:
        result = _run(command)
        if result.returncode != 0:
            raise CodegenError(
                f"{linker.version} from {linker.source} failed with exit code {result.returncode}: "
                f"{result.stderr.strip()}",
                notes=(f"command: {shlex.join(command)}",),
            )
        os.replace(partial, output)
    except (OSError, subprocess.TimeoutExpired) as error:
        notes = (f"command: {shlex.join(command)}",)
        raise CodegenError(f"cannot link {output}: {error}", notes=notes) from error
    finally:
        partial.unlink(missing_ok=True)


def _places() -> Iterator[tuple[str, Path | None, tuple[str, ...], str]]:
    """Yields (place, executable or None, leading arguments, why there is none), in search order."""
    rocm = env.ROCM_PATH.get() / "llvm" / "bin" / "ld.lld"
    yield "ROCm", rocm if os.path.lexists(rocm) else None, (), f"{rocm} does not exist"

    found = [Path(path) for path in map(shutil.which, PATH_NAMES) if path is not None]
    for path in found:
        yield "PATH", path, (), ""
    if not found:
        yield "PATH", None, (), f"none of {PATH_NAMES[0]}, {PATH_NAMES[1]} … {PATH_NAMES[-1]}"

    zig = _zig()
    yield "ziglang wheel", zig, ("ld.lld",), "the module ziglang is not installed"


def _zig() -> Path | None:
    """The zig executable of the ziglang wheel, found without importing it (the import would run zig)."""
    try:
        spec = importlib.util.find_spec("ziglang")
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(folders))) / "zig" if folders else None


def _probe(path: Path, arguments: tuple[str, ...], source: str) -> Linker:
    """Checks that `path` runs and is new enough.

    Raises:
        ToolchainError: what is wrong with it, in one line that starts with `source`.
    """
    path = path.absolute()
    try:
        status = path.stat()
    except OSError as error:
        raise ToolchainError(f"{source}: {path}: {error.strerror}") from error
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ToolchainError(f"{source}: {path} is not an executable file")
    identity = f"{path}:{status.st_size}:{status.st_mtime_ns}"
    version = _versions.get(identity) or _recall_version(identity)
    if version is None:
        version = _ask_version(path, arguments, source)
        _record_version(identity, version)
    _versions[identity] = version
    match = re.search(r"\bLLD (\d+)\.", version)
    if match is None:
        raise ToolchainError(f"{source}: {path} is not LLD: its --version says {version!r}")
    if int(match[1]) < MIN_MAJOR:
        raise ToolchainError(f"{source}: {path} is LLD {match[1]}, too old; accepted: {MIN_MAJOR} or newer")
    return Linker(path, arguments, source, version, identity)


def _ask_version(path: Path, arguments: tuple[str, ...], source: str) -> str:
    try:
        result = _run([str(path), *arguments, "--version"])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{source}: {path} does not run: {error}") from error
    lines = result.stdout.splitlines()
    if result.returncode != 0 or not lines:
        raise ToolchainError(f"{source}: {path} --version fails with exit code {result.returncode}")
    return lines[0].strip()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def _root() -> Path | None:
    root = env.CACHE_DIR.get()
    return None if root is None else root.absolute()


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _recall_version(identity: str) -> str | None:
    root = _root()
    if root is None:
        return None
    try:
        text = (root / "linkers" / _digest(identity)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    recorded, _, version = text.partition("\n")
    return version if recorded == identity and version else None


def _record_version(identity: str, version: str) -> None:
    root = _root()
    if root is None:
        return
    final = root / "linkers" / _digest(identity)
    partial = final.with_name(f"{final.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    with contextlib.suppress(OSError):  # without a writable cache, each process asks once
        root.mkdir(mode=0o700, parents=True, exist_ok=True)  # holds code that will be run
        final.parent.mkdir(exist_ok=True)
        partial.write_text(f"{identity}\n{version}", encoding="utf-8")
        partial.replace(final)


def _wrapper(linker: Linker) -> str:
    return f'#!/bin/sh\nexec {shlex.join(linker.command)} "$@"\n'


def _holds(folder: Path, linker: Linker) -> bool:
    """Whether `folder` is a complete toolkit for `linker` from which programs may be run."""
    entry = folder / "llvm" / "bin" / "ld.lld"
    try:
        if linker.arguments:
            same = entry.read_text(encoding="utf-8") == _wrapper(linker)
        else:
            same = os.readlink(entry) == str(linker.path)
    except (OSError, UnicodeDecodeError):
        return False
    return same and os.access(entry, os.X_OK)


def _fill(folder: Path, linker: Linker) -> None:
    entry = folder / "llvm" / "bin" / "ld.lld"
    entry.parent.mkdir(parents=True)
    if linker.arguments:
        entry.write_text(_wrapper(linker), encoding="utf-8")
        entry.chmod(0o755)
    else:
        entry.symlink_to(linker.path)


def _publish(folder: Path, linker: Linker) -> bool:
    """Puts a complete toolkit at `folder` with one rename, and says whether it is usable there."""
    staging = folder.with_name(f"{folder.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    trash = staging.with_suffix(".old")
    # Failing is normal where the directory cannot be written, or where another process was faster (a folder
    # cannot be renamed over a full one): the check at the end judges what is there.
    with contextlib.suppress(OSError):
        _fill(staging, linker)
        if folder.exists() and not _holds(folder, linker):
            trash.mkdir()
            folder.rename(trash / "damaged")
        staging.rename(folder)
    shutil.rmtree(staging, ignore_errors=True)
    shutil.rmtree(trash, ignore_errors=True)
    return _holds(folder, linker)


def _make_private(linker: Linker) -> Path:
    require_room()
    folder = Path(tempfile.mkdtemp(prefix="spconv_compiler-toolkit-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child must not take the folder away from its parent
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    _fill(folder, linker)
    return folder
