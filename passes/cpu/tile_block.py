"""Blocks of pairs times a panel of weights in tile registers (AMX): bf16 rows, f32 sums.

A tile has 16 rows of 64 bytes: 16 input rows by 32 channels, 16 pairs of channels by 16 columns of weights, or 16 × 16
sums. Rows of up to two tiles leave room for a panel's weights, which stay while blocks of 16 rows go by; longer ones
go in blocks of 32 rows, so that each tile that is loaded is multiplied twice.

The products of a tap are summed in an order that is the processor's own, the same for every row, and do not depend on
the rows beside it. Tile products round to nearest whatever the thread's rounding mode is, and take denormal operands
for zeros as they give zeros for denormal results: below 2^-126 a product is lost.
"""

from __future__ import annotations

import dataclasses
import struct

from spconv_compiler.passes.cpu.functions import Functions, address_of, call_effect
from spconv_compiler.passes.cpu.memory import bytes_after, i8, rounded
from spconv_compiler.passes.cpu.row_panels import RowPanels
from spconv_compiler.passes.kernel_builder import V, const, for_, i64
from spconv_compiler.targets.base import TileUnit

_PALETTE = 1
# Bytes and registers that a configuration has room for.
_CONFIGURATION, _SLOTS = 64, 16
_BF16_BYTES = 2


@dataclasses.dataclass(frozen=True)
class TileBlock:
    """`rows` pairs times a panel.

    Attributes:
        panels: tile_k is what a tile holds of an input row.
        rows: one or two tiles of them.
        lanes: f32 of a vector register.
        unit: the target's tile registers.
    """

    panels: RowPanels
    rows: int
    lanes: int
    unit: TileUnit

    @property
    def row_bytes(self) -> int:
        """From one input row to the next: whole tiles, or half of one."""
        half = self.unit.row_bytes // 2
        used = self.panels.padded_c_in * _BF16_BYTES
        return half if used <= half else rounded(used, self.unit.row_bytes)

    @property
    def tall(self) -> int:
        """Tiles of rows."""
        return self.rows // self.unit.rows

    @property
    def wide(self) -> int:
        """Tiles of columns."""
        return self.panels.tile_n // self.unit.rows

    @property
    def deep(self) -> int:
        """Tiles of input channels."""
        return self.panels.padded_c_in // self.panels.tile_k

    @property
    def keeps_weights(self) -> bool:
        """Whether all weights of a panel have registers beside one tile of rows and its sums."""
        return self.tall == 1 and self.wide + self.deep + self.wide * self.deep <= self.unit.tiles

    def _registers(self) -> tuple[list[list[int]], list[int], list[int]]:
        """Numbers of the registers: sums [row][column], inputs and weights."""
        sums = [[row * self.wide + column for column in range(self.wide)] for row in range(self.tall)]
        inputs = self.deep if self.keeps_weights else self.tall
        weights = self.wide * self.deep if self.keeps_weights else self.wide
        first = self.tall * self.wide
        assert first + inputs + weights <= self.unit.tiles
        return sums, list(range(first, first + inputs)), list(range(first + inputs, first + inputs + weights))

    def configuration(self) -> bytes:
        """What ldtilecfg reads: rows and bytes of a row, of every register."""
        sums, inputs, weights = self._registers()
        shapes = [(0, 0)] * _SLOTS
        for numbers, rows, row_bytes in (
            ([number for row in sums for number in row], self.unit.rows, self.unit.row_bytes),
            (inputs, self.unit.rows, self.panels.tile_k * _BF16_BYTES),
            (weights, self.panels.tile_k // self.panels.pair_k, self.unit.row_bytes),
        ):
            for number in numbers:
                shapes[number] = rows, row_bytes
        widths = struct.pack(f"<{_SLOTS}H", *(row_bytes for _, row_bytes in shapes))
        heights = bytes(rows for rows, _ in shapes)
        return bytes([_PALETTE]).ljust(_SLOTS, b"\0") + widths + heights

    def begin(self, functions: Functions, name: str) -> None:
        """Gives the registers of this thread their shapes; `name`: of the constant that holds them."""
        content = self.configuration()
        assert len(content) == _CONFIGURATION
        functions.constant(name, content)
        call_effect("llvm.x86.ldtilecfg", [address_of(name)])

    @staticmethod
    def end() -> None:
        """Gives the registers back: a thread that holds some is slower to switch, and so may its core be."""
        call_effect("llvm.x86.tilerelease", [])

    def load_panel(self, panel: V) -> None:
        """Before a panel's first block: loads its weights, if they are kept."""
        if self.keeps_weights:
            _, _, weights = self._registers()
            for step in range(self.deep):
                self._load_weights(weights[step * self.wide : (step + 1) * self.wide], panel, const(step, i64()))

    def __call__(self, inputs: V, panel: V, products: V, *, tall: int) -> None:
        """Builds the products of `tall` tiles of rows.

        Args:
            inputs: address of the first row, bf16 [padded_c_in], row_bytes from the next.
            panel: address of the weights, as load_panel was given it.
            products: address of f32 [rows, tile_n], written.
        """
        registers, rows, weights = self._registers()
        sums = registers[:tall]
        for number in (number for row in sums for number in row):
            _tile("tilezero", number)
        if self.keeps_weights:
            for k, row in enumerate(rows):
                self._load_rows(row, inputs, 0, const(k, i64()))
                self._multiply(sums, [row], weights[k * self.wide : (k + 1) * self.wide])
        else:
            with for_(0, const(self.deep, i64()), 1, unroll=False) as step:
                for place, row in enumerate(rows[:tall]):
                    self._load_rows(row, inputs, place, step.iv)
                self._load_weights(weights, panel, step.iv)
                self._multiply(sums, rows[:tall], weights)
        stride = self.panels.tile_n * 4
        for place, numbers in enumerate(sums):
            for column, number in enumerate(numbers):
                offset = place * self.unit.rows * stride + column * self.unit.row_bytes
                _tile("tilestored64", number, bytes_after(products, offset), const(stride, i64()))

    def _load_rows(self, register: int, inputs: V, place: int, step: V) -> None:
        first = bytes_after(inputs, place * self.unit.rows * self.row_bytes)
        address = bytes_after(first, step * (self.panels.tile_k * _BF16_BYTES))
        _tile("tileloadd64", register, address, const(self.row_bytes, i64()))

    def _load_weights(self, registers: list[int], panel: V, step: V) -> None:
        stride = self.panels.tile_n * self.panels.pair_k * _BF16_BYTES
        here = bytes_after(panel, step * (self.panels.tile_k // self.panels.pair_k * stride))
        for column, register in enumerate(registers):
            _tile("tileloadd64", register, bytes_after(here, column * self.unit.row_bytes), const(stride, i64()))

    def _multiply(self, sums: list[list[int]], inputs: list[int], weights: list[int]) -> None:
        for row, numbers in zip(inputs, sums, strict=True):
            for weight, number in zip(weights, numbers, strict=True):
                _tile("tdpbf16ps", number, row, weight)


def _tile(operation: str, *operands: int | V) -> None:
    """An instruction on tile registers, which are given by number."""
    arguments = [operand if isinstance(operand, V) else const(operand, i8()) for operand in operands]
    call_effect(f"llvm.x86.{operation}", arguments)
