"""Kernels compiled ahead of time, for machines without the compiler: a folder of entries in the cache's format.

`export_kernels` writes them where flydsl is installed; with SPCONV_BUNDLE set to the folder, kernels are taken from it
before anything is compiled. An entry is found by the options and the target's facts; what made it (toolchain, passes)
is not looked at, so a bundle belongs to one version of this package, which is part of its keys.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import spconv_compiler
from spconv_compiler import env
from spconv_compiler.artifact import Artifact
from spconv_compiler.cache_entry import MANIFEST, DamagedEntry, manifest_text, read_files, read_manifest
from spconv_compiler.cache_key import cache_key
from spconv_compiler.errors import InputError

if TYPE_CHECKING:
    from spconv_compiler.level_options import AnyOptions
    from spconv_compiler.targets import Target


# What `use` has set, which counts before SPCONV_BUNDLE.
_used: list[pathlib.Path] = []
# What `add` has added.
_added: list[pathlib.Path] = []


def folder() -> pathlib.Path | None:
    """The bundle in use, if there is one."""
    return _used[-1] if _used else env.BUNDLE.get()


def in_use() -> bool:
    """Whether there is a bundle to look in."""
    return bool(_used or _added or env.BUNDLE.get() is not None)


def add(place: pathlib.Path) -> None:
    """Looks for kernels in the bundle at `place` too, from now on, after those in use."""
    if place not in _added:
        _added.append(place)


def look_up(options: AnyOptions, target: Target) -> Artifact | None:
    """The kernel for these options out of the bundle in use, or of one that was added; None where none has it.

    Raises:
        InputError: see find.
    """
    place = folder()
    for root in (*([] if place is None else [place]), *reversed(_added)):
        found = find(root, options, target)
        if found is not None:
            return found
    return None


@contextlib.contextmanager
def use(place: pathlib.Path) -> Iterator[None]:
    """Takes kernels from the bundle at `place` in the block."""
    _used.append(place)
    try:
        yield
    finally:
        _used.remove(place)


def export_kernels(place: str | pathlib.Path, options: Iterable[AnyOptions]) -> int:
    """Compiles kernels (or finds them in the cache) and writes them to a bundle; what is there already is replaced.

    Args:
        place: the folder, made if it is not there.
        options: as compiler.conv_options and SparseOptions describe them.

    Returns:
        How many were written.

    Raises:
        InputError: the folder cannot be written to.
        CompileError, ToolchainError: see compile_conv.
    """
    from spconv_compiler.compiler import compile_options
    from spconv_compiler.targets import code_target, get_target

    root, count = pathlib.Path(place), 0
    for item in options:
        target = code_target(get_target(item.target))
        parts = bundle_parts(dataclasses.replace(item, target=target.name), target)
        try:
            _write(root, parts, compile_options(item).files)
        except OSError as error:
            raise InputError(f"the bundle {root} cannot be written: {error.strerror}") from error
        count += 1
    return count


def bundle_parts(options: AnyOptions, target: Target) -> dict[str, object]:
    """What an entry is found by."""
    return {**options.key_parts(), "target": target.facts(), "version": spconv_compiler.__version__}


def find(place: pathlib.Path, options: AnyOptions, target: Target) -> Artifact | None:
    """The kernel of a bundle, or None if it has none for these options.

    Raises:
        InputError: there is no such folder, or the entry is damaged: a bundle is not mended by compiling.
    """
    if not place.is_dir():
        raise InputError(f"SPCONV_BUNDLE: {place} is no folder")
    return _read(place, cache_key(bundle_parts(dataclasses.replace(options, target=target.name), target)))


@functools.lru_cache(maxsize=256)
def _read(root: pathlib.Path, key: str) -> Artifact | None:
    entry = root / key
    if not entry.is_dir():
        return None
    try:
        return Artifact(key, read_files(entry, read_manifest(entry, key)))
    except (DamagedEntry, OSError) as error:
        raise InputError(f"the bundle's entry {entry} is damaged: {error}; accepted: one that export wrote") from error


def _write(root: pathlib.Path, parts: Mapping[str, object], files: Mapping[str, bytes]) -> None:
    """An entry appears whole or not at all: it is made beside its place and moved there."""
    key = cache_key(parts)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=root) as made:
        new = pathlib.Path(made, key)
        new.mkdir()
        for name, content in {**files, MANIFEST: manifest_text(key, files, parts)}.items():
            (new / name).write_bytes(content)
        if (root / key).is_dir():
            os.replace(root / key, pathlib.Path(made, "old"))
        os.replace(new, root / key)
