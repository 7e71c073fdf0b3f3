"""The block of memory in which a kernel's arguments are passed, laid out as its metadata says."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Protocol

from spconv_compiler.errors import LaunchError

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Slot(Protocol):
    """Where an argument lies, in bytes."""

    @property
    def offset(self) -> int: ...

    @property
    def size(self) -> int: ...


class ArgumentBlock:
    """A block that is filled again for every launch; until the launch is queued nobody else may fill it.

    Args:
        kernel: its name, for messages.
        slots: one for each argument, in order, not overlapping.
        nbytes: size of the block.

    Attributes:
        address, nbytes: of the block.
    """

    def __init__(self, kernel: str, slots: Sequence[Slot], nbytes: int) -> None:
        self._kernel, self._slots, self.nbytes = kernel, slots, nbytes
        layout, end = "<", 0
        for number, slot in enumerate(slots):
            if slot.offset < end or slot.offset + slot.size > nbytes or slot.size not in _CODES:
                raise LaunchError(
                    f"kernel {kernel}: argument {number} takes bytes {slot.offset} to {slot.offset + slot.size} "
                    f"of {nbytes} bytes of arguments"
                )
            layout += f"{slot.offset - end}x{_CODES[slot.size]}"
            end = slot.offset + slot.size
        self._layout = struct.Struct(layout)
        self._masks = [(1 << 8 * slot.size) - 1 for slot in slots]
        self._memory = ctypes.create_string_buffer(max(1, nbytes))
        self.address = ctypes.addressof(self._memory)

    def slot(self, number: int) -> ctypes.c_uint64 | ctypes.c_uint32:
        """Argument `number` in the block, 4 or 8 bytes: it is passed as its `value` says."""
        slot = self._slots[number]
        kind = ctypes.c_uint64 if slot.size == 8 else ctypes.c_uint32
        return kind.from_buffer(self._memory, slot.offset)

    def fill(self, values: Sequence[int]) -> None:
        """Writes the arguments; a number may be negative.

        Raises:
            LaunchError: their number differs from the kernel's, or one does not fit its place.
        """
        try:
            self._layout.pack_into(self._memory, 0, *values)
        except struct.error:
            self._layout.pack_into(self._memory, 0, *self._checked(values))

    def _checked(self, values: Sequence[int]) -> list[int]:
        """The values modulo the size of their places."""
        if len(values) != len(self._slots):
            raise LaunchError(f"kernel {self._kernel} takes {len(self._slots)} arguments; given: {len(values)}")
        for number, (slot, value) in enumerate(zip(self._slots, values, strict=True)):
            bits = 8 * slot.size
            if not -(1 << bits - 1) <= value < 1 << bits:
                raise LaunchError(f"kernel {self._kernel}: argument {number} is {value}; accepted: {slot.size} bytes")
        return [value & mask for value, mask in zip(values, self._masks, strict=True)]
