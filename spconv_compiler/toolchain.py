"""What decides the generated code besides the program: the compiler itself, MLIR, the linker, the CPU.

All of it enters the cache key, so that a kernel built by another compiler is never loaded. Nothing here
imports MLIR or starts a process: a kernel that is already on disk must load within milliseconds.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from spconv_compiler import linker
from spconv_compiler.errors import ToolchainError

PACKAGES = ("spconv_compiler", "spconv_compiler.passes", "spconv_compiler.dialect")
SOURCE_SUFFIXES = (".py", ".irdl.mlir")
# Folders that no compilation imports anything from; a kernel on disk loads a third faster without reading them.
OUTSIDE = ("bench", "io", "tools")

# The x86 extensions that generated code may use, as /proc/cpuinfo spells them -> as LLVM spells them.
CPU_FEATURES: Mapping[str, str] = {
    "ssse3": "ssse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "popcnt": "popcnt",
    "movbe": "movbe",
    "bmi1": "bmi",
    "bmi2": "bmi2",
    "abm": "lzcnt",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "avxvnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vbmi": "avx512vbmi",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
}


def fingerprint(*, host_cpu: bool = False) -> dict[str, str]:
    """The toolchain's part of the cache key.

    Args:
        host_cpu: add the features of this CPU; for code that runs on the machine that compiles it.

    Raises:
        ToolchainError: flydsl is not installed, or SPCONV_LLD names something unusable.
    """
    version, native = flydsl_identity()
    parts = {
        "sources": sources_digest(),
        "flydsl": version,
        "flydsl_native": native,
        "linker": linker.linker_identity(),
    }
    if host_cpu:
        parts["host_cpu"] = " ".join(sorted(host_cpu_features()))
    return parts


@functools.cache
def sources_digest() -> str:
    """SHA-256 over every source file that compiling may import, names included: all but those in OUTSIDE.

    Taken once per process: what runs is the code as it was imported, not a file edited since.
    """
    return digest_of([(name, _package_folder(name)) for name in PACKAGES])


def digest_of(folders: list[tuple[str, Path]]) -> str:
    """SHA-256 over the sources below `folders`: pairs of a package's name, which counts, and its place."""
    digest = hashlib.sha256()
    for package, folder in folders:
        for relative in _source_files(folder):
            # Hundreds of files: a Path for each would take longer than to read it.
            with open(f"{folder}/{relative}", "rb", buffering=0) as file:
                content = file.readall()
            digest.update(f"{package}/{relative} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


@functools.cache
def flydsl_identity() -> tuple[str, str]:
    """Version of flydsl, and a SHA-256 over the digests of its native libraries that the wheel carries.

    Raises:
        ToolchainError: flydsl is not installed, or is not a release that carries these two values.
    """
    spec = importlib.util.find_spec("flydsl")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("flydsl is not installed: found no module `flydsl`; install flydsl>=0.5,<0.6")
    folder = Path(next(iter(spec.submodule_search_locations)))
    version = _read_constant(folder / "__init__.py", "__version__")
    native = _read_constant(folder / "_mlir" / "_mlir_libs" / "_native_digest.py", "NATIVE_SHA256")
    if not isinstance(version, str) or not isinstance(native, dict):
        raise ToolchainError(f"flydsl at {folder} has an unknown layout; install flydsl>=0.5,<0.6")
    listing = "".join(f"{name} {value}\n" for name, value in sorted(native.items()))
    return version, hashlib.sha256(listing.encode()).hexdigest()


def host_cpu_features(cpuinfo: Path | None = None) -> frozenset[str]:
    """The x86 extensions of this CPU that generated code may use, by LLVM's names (`avx2`, `avx512bf16`).

    Args:
        cpuinfo: read this file instead of /proc/cpuinfo.

    Empty where the kernel gives no list of flags (not Linux, not x86).
    """
    return _read_cpu_features(cpuinfo or Path("/proc/cpuinfo"))


@functools.cache
def _read_cpu_features(cpuinfo: Path) -> frozenset[str]:
    try:
        # The first processor is enough, and reading on costs milliseconds on machines with many cores.
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            flags = next((line for line in lines if line.split(":")[0].strip() == "flags"), "")
    except OSError:
        return frozenset()
    return frozenset(CPU_FEATURES[flag] for flag in flags.partition(":")[2].split() if flag in CPU_FEATURES)


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError(f"the package {name} is missing from this installation")
    return Path(next(iter(spec.submodule_search_locations)))


def _source_files(folder: Path) -> list[str]:
    """Paths, relative to `folder`, of the sources below it, sorted; not those of packages listed apart or OUTSIDE."""
    apart = {str(folder / name) for name in (*(name.rpartition(".")[2] for name in PACKAGES[1:]), *OUTSIDE)}
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and f"{place}/{name}" not in apart]
        prefix = os.path.relpath(place, folder).replace(os.sep, "/")
        found += [f"{prefix}/{name}" for name in files if name.endswith(SOURCE_SUFFIXES)]
    return sorted(found)


def _read_constant(path: Path, name: str) -> object:
    """The literal assigned to `name` in a Python file, without running the file; None when there is none."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            try:
                return ast.literal_eval(node.value)
            except ValueError:
                return None
    return None
