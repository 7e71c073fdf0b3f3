"""The key of a compiled kernel: SHA-256 over everything that decides its code, printed in a fixed order.

Parts are named values. Those in `ORDER` are printed first, in that order, the others after them by name; so
the order in which a dictionary was filled does not matter, and a part that is new still counts. The parts are
stored beside the kernel, and `explain` names those that differ between two kernels.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping, Set
from pathlib import PurePath

FORMAT_VERSION = 1

ORDER = (
    "kernel_size",
    "c_in",
    "c_out",
    "key_width",
    "dtype",
    "dtypes",
    "out_dtype",
    "schedule",
    "target",
    "options",
    "pipeline",
    "toolchain",
)

ABSENT = "(absent)"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One part in which two kernels differ.

    Attributes:
        part: dotted path, such as `toolchain.linker`.
        a: the value in the first, as printed, or `ABSENT`.
        b: the value in the second, likewise.
    """

    part: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.part}: {self.a} -> {self.b}"


def cache_key(parts: Mapping[str, object]) -> str:
    """The key, 64 hexadecimal digits.

    Raises:
        TypeError: a part holds a value that has no fixed printed form; the message names the part.
    """
    return hashlib.sha256(printed(parts).encode()).hexdigest()


def printed(parts: Mapping[str, object]) -> str:
    """The text that is hashed: the format version, then one line per part."""
    plain = canonical(parts)
    names = [name for name in ORDER if name in plain] + sorted(plain.keys() - set(ORDER))
    lines = [f"format = {FORMAT_VERSION}", *(f"{name} = {_text(plain[name])}" for name in names)]
    return "\n".join(lines) + "\n"


def canonical(parts: Mapping[str, object]) -> dict[str, object]:
    """`parts` as plain JSON values: dataclasses become dictionaries, sets sorted lists, enums their names.

    Raises:
        TypeError: a value (or the key of a nested dictionary) is of another type.
    """
    for name in parts:
        if not isinstance(name, str) or not name.isidentifier():
            raise TypeError(f"cache key: the name of a part is an identifier, got {name!r}")
    return _plain_mapping(parts, "")


def explain(parts_a: Mapping[str, object], parts_b: Mapping[str, object]) -> list[Difference]:
    """The parts that differ, in printed order; nested dictionaries are compared entry by entry."""
    a, b = _leaves(canonical(parts_a)), _leaves(canonical(parts_b))
    rank = {name: index for index, name in enumerate(ORDER)}
    paths = sorted(a.keys() | b.keys(), key=lambda path: (rank.get(path[0], len(ORDER)), path))
    triples = ((".".join(path), a.get(path, ABSENT), b.get(path, ABSENT)) for path in paths)
    return [Difference(part, left, right) for part, left, right in triples if left != right]


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _plain(value: object, where: str) -> object:
    if value is None or type(value) in (str, int, bool, float):
        return value
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, **_plain_mapping(fields, where)}
    if isinstance(value, Mapping):
        return _plain_mapping(value, where)
    if isinstance(value, Set):
        return sorted((_plain(item, where) for item in value), key=_text)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(
        f"cache key part {where}: {type(value).__name__} has no fixed printed form; accepted: str, int, "
        "bool, float, None, enums and paths; dataclasses, dictionaries, lists, tuples and sets of these"
    )


def _plain_mapping(mapping: Mapping[str, object], where: str) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, value in mapping.items():
        path = f"{where}.{name}" if where else name
        if not isinstance(name, str):
            raise TypeError(f"cache key part {path}: names are str, got {type(name).__name__}")
        plain[name] = _plain(value, path)
    return plain


def _leaves(value: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """The printed leaves by path; an empty dictionary is itself a leaf."""
    if not isinstance(value, dict) or (not value and path):
        return {path: _text(value)}
    leaves: dict[tuple[str, ...], str] = {}
    for name, item in value.items():
        leaves.update(_leaves(item, (*path, name)))
    return leaves
