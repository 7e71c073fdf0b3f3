"""Reads the part of MessagePack that code object metadata uses: maps, arrays, strings, integers, booleans, nil."""

from __future__ import annotations

from typing import Any, TypeAlias

from spconv_compiler.sim.errors import ObjectError

Value: TypeAlias = "dict[str, Any] | list[Any] | str | int | bool | None"

# First byte of a value of fixed form -> (kind, bytes that hold its number, signed).
_FORMS = {
    0xCC: ("int", 1, False),
    0xCD: ("int", 2, False),
    0xCE: ("int", 4, False),
    0xCF: ("int", 8, False),
    0xD0: ("int", 1, True),
    0xD1: ("int", 2, True),
    0xD2: ("int", 4, True),
    0xD3: ("int", 8, True),
    0xD9: ("str", 1, False),
    0xDA: ("str", 2, False),
    0xDB: ("str", 4, False),
    0xDC: ("array", 2, False),
    0xDD: ("array", 4, False),
    0xDE: ("map", 2, False),
    0xDF: ("map", 4, False),
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_MAX_DEPTH = 32


def unpack(data: bytes) -> Value:
    """The one value that `data` holds.

    Raises:
        ObjectError: the bytes end early, go on after the value, or hold a type that metadata does not use.
    """
    value, end = _Reader(data).value(0, 0)
    if end != len(data):
        raise ObjectError(f"metadata: {len(data) - end} bytes after the end of the MessagePack value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, at: int, size: int) -> bytes:
        if at + size > len(self.data):
            raise ObjectError(f"metadata: MessagePack ends at byte {len(self.data)}, needed: {at + size}")
        return self.data[at : at + size]

    def value(self, at: int, depth: int) -> tuple[Value, int]:
        """(the value that begins at a byte, the byte after it)."""
        if depth > _MAX_DEPTH:
            raise ObjectError(f"metadata: MessagePack is nested deeper than {_MAX_DEPTH}")
        first = self.take(at, 1)[0]
        at += 1
        if first in _CONSTANTS:
            return _CONSTANTS[first], at
        if first < 0x80 or first >= 0xE0:
            return first - (0x100 if first >= 0xE0 else 0), at
        if first < 0xC0:
            kind = "map" if first < 0x90 else "array" if first < 0xA0 else "str"
            return self.body(kind, first & (0x1F if kind == "str" else 0x0F), at, depth)
        if first not in _FORMS:
            raise ObjectError(f"metadata: MessagePack type 0x{first:02x} at byte {at - 1} is not used in metadata")
        kind, size, signed = _FORMS[first]
        number = int.from_bytes(self.take(at, size), "big", signed=signed)
        return (number, at + size) if kind == "int" else self.body(kind, number, at + size, depth)

    def body(self, kind: str, count: int, at: int, depth: int) -> tuple[Value, int]:
        """The contents of a string, array or map of `count` bytes, items or entries."""
        if kind == "str":
            try:
                return self.take(at, count).decode(), at + count
            except UnicodeDecodeError as error:
                raise ObjectError(f"metadata: a string is not UTF-8: {error}") from None
        items: list[Value] = []
        for _ in range(count * (2 if kind == "map" else 1)):
            item, at = self.value(at, depth + 1)
            items.append(item)
        if kind == "array":
            return items, at
        keys = items[::2]
        if not all(isinstance(key, str) for key in keys):
            raise ObjectError("metadata: a MessagePack map has a key that is no string")
        return dict(zip(map(str, keys), items[1::2], strict=True)), at
