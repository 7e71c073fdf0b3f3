"""The format of one entry of the kernel cache: a folder of files with a manifest that proves them whole.

`manifest.json` holds the key, the parts of the key, the time of creation, the size and SHA-256 of each file,
and a checksum over all this. So a bit that flips anywhere, a file that is short or missing, and an entry
copied to the place of another key are all found when the entry is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path

from spconv_compiler import cache_key

MANIFEST = "manifest.json"
FORMAT_VERSION = 1

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_DAMAGE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class DamagedEntry(Exception):
    """An entry is not what was written; the text says how."""


@dataclasses.dataclass(frozen=True)
class FileFacts:
    """Size in bytes and SHA-256 (hexadecimal) of one stored file."""

    size: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What an entry says of itself.

    Attributes:
        key: 64 hexadecimal digits.
        created: seconds since 1970.
        parts: the parts of the key, as plain JSON values.
        files: facts of each stored file, by name.
    """

    key: str
    created: float
    parts: dict[str, object]
    files: dict[str, FileFacts]


def check_name(name: str) -> str:
    """Returns `name` when it is a plain file name.

    Raises:
        ValueError: it is not.
    """
    if not _FILE_NAME.fullmatch(name) or name == MANIFEST:
        raise ValueError(
            f"file name {name!r} is not accepted in the cache; accepted: letters, digits and _ . + -, "
            f"not starting with . + or -, and not {MANIFEST}"
        )
    return name


def manifest_text(key: str, files: Mapping[str, bytes], parts: Mapping[str, object]) -> bytes:
    """The manifest of a new entry.

    Raises:
        ValueError: a file's name is not a plain name.
        TypeError: `parts` have no printed form.
    """
    body: dict[str, object] = {
        "format": FORMAT_VERSION,
        "key": key,
        "created": time.time(),
        "parts": cache_key.canonical(parts),
        "files": {
            check_name(name): {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        },
    }
    return json.dumps({**body, "checksum": _checksum(body)}, indent=1, sort_keys=True).encode()


def read_manifest(folder: Path, key: str) -> Manifest:
    """The manifest of the entry at `folder`, checked.

    Raises:
        DamagedEntry: it is missing, altered, of another format or of another key.
        OSError: it cannot be read for a reason that is no damage (permissions, too many open files).
    """
    try:
        body = json.loads((folder / MANIFEST).read_bytes())
    except _DAMAGE as error:
        raise DamagedEntry(f"{MANIFEST}: {error.strerror}") from error
    except ValueError as error:
        raise DamagedEntry(f"{MANIFEST} is not JSON: {error}") from error
    if not isinstance(body, dict) or body.pop("checksum", None) != _checksum(body):
        raise DamagedEntry(f"{MANIFEST} does not have its checksum")
    if body["format"] != FORMAT_VERSION:
        raise DamagedEntry(f"format {body['format']}, accepted: {FORMAT_VERSION}")
    if body["key"] != key:
        raise DamagedEntry(f"it is the entry of another key, {body['key']}")
    files = {name: FileFacts(facts["size"], facts["sha256"]) for name, facts in body["files"].items()}
    return Manifest(key, body["created"], body["parts"], files)


def read_files(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """The stored files, each compared with the manifest.

    Raises:
        DamagedEntry: a file is missing, short, long or altered.
        OSError: a file cannot be read for a reason that is no damage.
    """
    files = {}
    for name, facts in manifest.files.items():
        try:
            content = (folder / name).read_bytes()
        except _DAMAGE as error:
            raise DamagedEntry(f"{name}: {error.strerror}") from error
        if len(content) != facts.size:
            raise DamagedEntry(f"{name} has {len(content)} bytes, written were {facts.size}")
        if hashlib.sha256(content).hexdigest() != facts.sha256:
            raise DamagedEntry(f"{name} does not have its checksum")
        files[name] = content
    return files


def _checksum(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
