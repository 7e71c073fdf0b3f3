"""Packed weights of the CPU: [tap][panel][k step][column][k in step], a panel being `tile_n` output channels.

A micro-kernel reads one panel from front to back. Elements are f32 with one k in a step, or bf16 with two for
processors that multiply pairs of bf16, in vectors or in tiles; columns and k beyond the weight are zeros.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.memory import rounded
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.rounding import widen
from spconv_compiler.passes.kernel_builder import V, const, f32, for_, gep, i64, load, store

# A worker for this many elements, some half a millisecond.
_GRAIN = 1 << 19


@dataclasses.dataclass(frozen=True)
class RowPanels:
    """The layout of one packed weight.

    Attributes:
        taps, c_in, c_out: of the weight.
        tile_n: output channels of a panel.
        pair_k: input channels of a k step.
        tile_k: input channels are padded with zeros to a multiple of it; 0: of pair_k.
    """

    taps: int
    c_in: int
    c_out: int
    tile_n: int
    pair_k: int
    tile_k: int = 0

    @property
    def panels(self) -> int:
        """Panels of one tap."""
        return -(-self.c_out // self.tile_n)

    @property
    def k_steps(self) -> int:
        return self.padded_c_in // self.pair_k

    @property
    def padded_c_in(self) -> int:
        return rounded(self.c_in, self.tile_k or self.pair_k)

    @property
    def panel_elements(self) -> int:
        return self.k_steps * self.pair_k * self.tile_n

    @property
    def elements(self) -> int:
        return self.taps * self.panels * self.panel_elements

    def packed_element(self, element: ir.Type) -> ir.Type:
        """The element type that weights of `element` are packed as."""
        return element if self.pair_k == 2 else f32()


@dataclasses.dataclass(frozen=True)
class PackRowPanels:
    """Body of the weight kernel. Arguments: weight [c_out, taps, c_in]; packed [elements]; threads."""

    functions: Functions
    name: str
    panels: RowPanels
    element: ir.Type

    def __call__(self, weight: V, packed: V, threads: V) -> None:
        items = const(self.panels.taps * self.panels.panels, i64())
        workers = worth_workers(threads, const(self.panels.elements, i64()), _GRAIN)
        parallel_for(self.functions, self.name, items, workers, [weight, packed], self._panel)

    def _panel(self, item: V, worker: V, weight: V, packed: V) -> None:
        panels = self.panels
        tap, panel = item // panels.panels, item % panels.panels
        target_type = panels.packed_element(self.element)
        target = gep(packed, item * panels.panel_elements, target_type)
        if panels.c_out % panels.tile_n or panels.c_in < panels.padded_c_in:
            with for_(0, const(panels.panel_elements, i64()), unroll=False) as loop:
                store(const(0, target_type), target, loop.iv)
        columns = (const(panels.c_out, i64()) - panel * panels.tile_n).min(panels.tile_n)
        with for_(0, columns, 1, unroll=False) as column:
            channel = panel * panels.tile_n + column.iv
            source = gep(weight, (channel * panels.taps + tap) * panels.c_in, self.element)
            with for_(0, const(panels.c_in, i64()), unroll=False) as k:
                value = load(source, self.element, k.iv)
                place = k.iv // panels.pair_k * (panels.tile_n * panels.pair_k)
                place = place + column.iv * panels.pair_k + k.iv % panels.pair_k
                store(value if panels.pair_k == 2 else widen(value), target, place)
