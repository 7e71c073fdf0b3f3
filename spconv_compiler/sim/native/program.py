"""A kernel as records: which handler each instruction has, and where its operands lie in the context of a wave."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.errors import LaunchFault
from spconv_compiler.sim.instruction import Instruction, Operand
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.family import handler_name
from spconv_compiler.sim.native.library import Shapes, family_of
from spconv_compiler.sim.native.matrix import KEPT, kept_operands
from spconv_compiler.sim.rows import DWORDS, Row

_WORDS = layout.RECORD_BYTES // 8


class NativeProgram:
    """A kernel, decoded. Handlers are bound when it is known which library is used.

    Attributes:
        instructions: in the order of the records.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.instructions = decode(kernel.code, kernel.address)
        self._index = {item.address: index for index, item in enumerate(self.instructions)}
        self._constants: dict[tuple[int, int], int] = {}
        self._words: list[int] = []
        self._shapes: list[tuple[Row, str]] = []
        self._records = np.zeros((len(self.instructions), layout.RECORD_BYTES // 4), np.int32)
        for index, item in enumerate(self.instructions):
            family = family_of(item.row)
            self._shapes.append((item.row, family.shape(item)))
            fields = list(family.fields(item, self))
            if len(fields) > layout.INDEX_FIELD:
                raise LaunchFault(f"{kernel.name}: {item}: {len(fields)} fields of a record are needed")
            start = layout.FIELDS // 4
            self._records[index, start : start + len(fields)] = fields
        for index in kept_operands(self.instructions):
            row, shape = self._shapes[index]
            self._shapes[index] = row, shape + KEPT
        self._records[:, layout.FIELDS // 4 + layout.INDEX_FIELD] = np.arange(len(self._records))

    @property
    def constants(self) -> npt.NDArray[np.uint32]:
        """The words that lie behind the scalar registers."""
        return np.array(self._words, np.uint32)

    def missing(self, addresses: Mapping[str, int], *, traced: bool = False) -> Shapes:
        """Rows and shapes that have no handler yet, by the handler's name; traced: and those that access memory."""
        return {
            name: each for name, each in self._named() if name not in addresses or traced and each[0].access is not None
        }

    def records(self, addresses: Mapping[str, int]) -> npt.NDArray[np.uint8]:
        """A fresh copy of the records, with handlers, as bytes at a multiple of 64."""
        made = aligned(self._records.nbytes)
        made[:] = self._records.view(np.uint8).reshape(-1)
        handlers = [addresses[name] for name, _ in self._named()]
        made.view(np.uint64).reshape(-1, _WORDS)[:, layout.HANDLER // 8] = handlers
        return made

    def _named(self) -> list[tuple[str, tuple[Row, str]]]:
        return [(handler_name(*each), each) for each in self._shapes]

    # Places of operands: see family.Places.

    def vector(self, operand: Operand) -> int:
        """Offset of the first register of a "v" or "a" operand; LaunchFault when it is not allocated."""
        descriptor = self.kernel.descriptor
        start = descriptor.accum_offset if operand.kind == "a" else 0
        limit = descriptor.vgprs if operand.kind == "a" else min(descriptor.vgprs, descriptor.accum_offset)
        if start + operand.number + operand.dwords > limit:
            raise LaunchFault(f"{self.kernel.name}: {operand} is not allocated: {limit - start} registers are")
        return layout.vector(start + operand.number)

    def scalar(self, operand: Operand, type_: str) -> int:
        """Offset of a scalar register, or of a constant as the type reads it."""
        if operand.kind == "s":
            return layout.SCALARS + 4 * operand.number
        dwords = DWORDS.get(type_, 1)
        return self.constant(operand.bits64() if dwords == 2 else operand.constant(), dwords)

    def constant(self, value: int, dwords: int = 1) -> int:
        """Offset of a constant of one word, or two."""
        key = (value & (1 << 32 * dwords) - 1, dwords)
        if key not in self._constants:
            if len(self._words) + dwords > layout.CONSTANT_WORDS:
                raise LaunchFault(f"{self.kernel.name}: more than {layout.CONSTANT_WORDS} words of constants")
            self._constants[key] = layout.CONSTANTS + 4 * len(self._words)
            self._words += [key[0] >> 32 * part & 0xFFFFFFFF for part in range(dwords)]
        return self._constants[key]

    def source(self, operand: Operand, type_: str) -> int:
        """Offset of an operand of either kind."""
        return self.vector(operand) if operand.kind in "va" else self.scalar(operand, type_)

    def distance(self, instruction: Instruction, address: int) -> int:
        """Bytes from the record of an instruction to that of the one at an address."""
        target = self._index.get(address)
        if target is None:
            raise LaunchFault(f"{self.kernel.name}: {instruction} leads to no instruction")
        return layout.RECORD_BYTES * (target - self._index[instruction.address])


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that start at a multiple of 64, and keep the cache lines around them to themselves."""
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
