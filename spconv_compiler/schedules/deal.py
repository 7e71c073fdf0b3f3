"""How tiles of rows are dealt out to workgroups: as data, for the cost of a schedule and for its kernel."""

from __future__ import annotations

import dataclasses
import math

TILE_ROWS = 16
# A turn of workgroups that leaves a fifth of the chip idle is as good as a full one: shares that are larger by a
# quarter read less weights, which then take longer than the products.
_NEARLY = 0.8
# Larger shares still read so few weights that products take longest: a turn leaves less of the chip idle.
_MOSTLY = 0.85


@dataclasses.dataclass(frozen=True)
class Deal:
    """Shares as even as can be, as many as keep all, or nearly all, compute units busy in whole turns.

    What a share holds follows from the number of rows when a kernel runs: it is no part of the kernel.

    Attributes:
        most: tiles of a share. least: those that a share has even where there are few, so that reading weights pays.
        turns: numbers of shares of which one turn consists, or any number of them.
    """

    most: int
    least: int
    turns: tuple[int, ...]

    @staticmethod
    def over(units: int, chiplets: int, groups: int, most: int, least: int) -> Deal:
        """For a chip of so many compute units, where every share is `groups` workgroups on one chiplet."""
        full = max(1, units // groups // chiplets)
        return Deal(most, least, tuple(chiplets * size for size in sorted({math.ceil(_NEARLY * full), full})))

    @staticmethod
    def tall(units: int, chiplets: int, groups: int, most: int, least: int) -> Deal:
        """The same for shares of more rows and fewer columns."""
        full = max(1, units // groups // chiplets)
        return Deal(most, least, tuple(chiplets * size for size in range(math.ceil(_MOSTLY * full), full + 1)))

    def count(self, tiles: int) -> int:
        """The number of shares of at least one tile."""
        whole = -(-tiles // self.most)
        return min(-(-tiles // self.least), *(-(-whole // turn) * turn for turn in self.turns))

    def texts(self, rows: str) -> list[str]:
        """The number of shares is the smallest of these, texts for plan.size_map."""
        whole = f"{rows} ceildiv {self.most * TILE_ROWS}"
        few = f"{rows} ceildiv {self.least * TILE_ROWS}"
        return [few, *(f"(({whole}) ceildiv {turn}) * {turn}" for turn in self.turns)]


@dataclasses.dataclass(frozen=True)
class Cut:
    """Output channels in panels, cut into as few slices of at most `widest` as can be, as even as can be."""

    panels: int
    widest: int

    @property
    def slices(self) -> int:
        return -(-self.panels // self.widest)

    @property
    def widths(self) -> list[int]:
        """Panels that a slice can have: the first slices have one more where panels do not divide."""
        return sorted({self.panels // self.slices, -(-self.panels // self.slices)})
