"""Weights as panels for matrix instructions: [tap][n tile][k / run][16][run], padding filled with zeros.

Element (t, n, q, j, e) is the weight of tap t from channel run·q + e to channel 16·n + j; a wave reads 1 KiB in a
row for one step. C_in is padded to whole steps, C_out to whole slices of the gemm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

from spconv_compiler.passes.gpu.channels import Channels
from spconv_compiler.passes.gpu.lanes import block, plus, store, thread, times
from spconv_compiler.passes.kernel_builder import V, const, i32, if_


@dataclasses.dataclass(frozen=True)
class Panels:
    """Shape of packed weights: `columns` output channels a panel, `run` input channels a lane."""

    PARAMETERS: ClassVar[tuple[str, ...]] = ("tile_n", "mma_n", "tile_k", "chunk_k")

    taps: int
    c_in: int
    c_out: int
    slice_columns: int
    columns: int
    tile_k: int
    run: int

    @staticmethod
    def of(taps: int, c_in: int, c_out: int, schedule: Mapping[str, int]) -> Panels:
        """The panels that the parameters of a weights or gemm schedule ask for."""
        return Panels(taps, c_in, c_out, *(schedule[name] for name in Panels.PARAMETERS))

    @property
    def name(self) -> str:
        """The parameters, for names of kernels."""
        return f"n{self.slice_columns}x{self.columns}_k{self.tile_k}x{self.run}"

    @property
    def n_tiles(self) -> int:
        """Panels of one tap, whole slices of them."""
        return -(-self.c_out // self.slice_columns) * (self.slice_columns // self.columns)

    @property
    def k_runs(self) -> int:
        """Runs of a padded column."""
        return -(-self.c_in // self.tile_k) * (self.tile_k // self.run)

    @property
    def panel(self) -> int:
        """Elements of one panel."""
        return self.k_runs * self.columns * self.run

    @property
    def elements(self) -> int:
        return self.taps * self.n_tiles * self.panel


def pack_weight(panels: Panels, lanes: int) -> Callable[..., None]:
    """Body(weight [C_out, taps, C_in], packed): a lane per run."""
    runs = panels.elements // panels.run
    exact = panels.n_tiles * panels.columns == panels.c_out

    def body(weight: V, packed: V) -> None:
        number = plus(times(block(), lanes), thread())
        size = const(panels.c_out * panels.taps * panels.c_in, i32())
        rows = Channels.of(weight, size, panels.c_in, panels.run, (panels.k_runs - 1) * panels.run)
        with if_(number < runs):
            column, rest = number % panels.columns, number // panels.columns
            channel, rest = times(rest % panels.k_runs, panels.run), rest // panels.k_runs
            tap, tile = rest // panels.n_tiles, rest % panels.n_tiles
            out = plus(times(tile, panels.columns), column)
            start = plus(times(plus(times(out, panels.taps), tap), panels.c_in), channel)
            limit = None if exact else (out < panels.c_out).select(const(panels.c_in, i32()), 0)
            store(rows.edge(start, channel, 0, limit), packed, times(number, panels.run))

    return body
