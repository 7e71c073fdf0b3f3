"""How tiles of rows are dealt out to workgroups: as data, for the cost of a schedule and for its kernel."""

from __future__ import annotations

import dataclasses
import itertools
import math

TILE_ROWS = 16
# More than there are of anything.
_COUNTS = 2**31
# Panels of 16 columns that a line of f32 results has.
LINE_PANELS = 2
# Where one slice has all columns, a turn of workgroups that leaves a fifth of the chip idle is as good as a full one:
# shares that are larger by a quarter read less weights, which then take longer than the products.
_NEARLY = 0.8
# With more columns, or still larger shares, products take longest: a turn leaves less of the chip idle.
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
        part = _MOSTLY if groups > 1 else _NEARLY
        return Deal(most, least, tuple(chiplets * size for size in sorted({math.ceil(part * full), full})))

    @staticmethod
    def tall(units: int, chiplets: int, groups: int, most: int, least: int) -> Deal:
        """The same for shares of more rows and fewer columns."""
        full = max(1, units // groups // chiplets)
        return Deal(most, least, tuple(chiplets * size for size in range(math.ceil(_MOSTLY * full), full + 1)))

    def count(self, tiles: int) -> int:
        """The number of shares of at least one tile."""
        whole = -(-tiles // self.most)
        return min(-(-tiles // self.least), *(-(-whole // turn) * turn for turn in self.turns))

    @property
    def turn(self) -> int:
        """Tiles that fit into one turn of shares."""
        return self.most * self.turns[-1]

    def whichever(self, rows: str, fitting: str, others: str) -> str:
        """Texts for plan.size_map, of which the least holds: the `fitting` where rows fit into one turn, else others.

        Those that do not hold become larger than all counts that there are.
        """
        beyond = f"(({rows} + {_COUNTS - 1 - self.turn * TILE_ROWS}) floordiv {_COUNTS})"
        kept = [f"{text} + {beyond} * {_COUNTS}" for text in fitting.split(", ")]
        return ", ".join([*kept, *(f"{text} + (1 - {beyond}) * {_COUNTS}" for text in others.split(", "))])

    def texts(self, rows: str) -> list[str]:
        """The number of shares is the smallest of these, texts for plan.size_map."""
        whole = f"{rows} ceildiv {self.most * TILE_ROWS}"
        few = f"{rows} ceildiv {self.least * TILE_ROWS}"
        return [few, *(f"(({whole}) ceildiv {turn}) * {turn}" for turn in self.turns)]


@dataclasses.dataclass(frozen=True)
class Cut:
    """Output channels in panels, cut into as few slices of at most `widest` as can be, as even as whole lines allow.

    Slices begin at an even panel, so that those between write whole lines of f32 rows.
    """

    panels: int
    widest: int

    @property
    def slices(self) -> int:
        return -(-self.panels // (self.widest // LINE_PANELS * LINE_PANELS))

    @property
    def lines(self) -> tuple[int, int]:
        """(lines of a slice, how many of the first slices have one more)."""
        return divmod(-(-self.panels // LINE_PANELS), self.slices)

    @property
    def widths(self) -> list[int]:
        """Panels that a slice can have."""
        return sorted({width for _, width in self.parts})

    @property
    def parts(self) -> list[tuple[int, int]]:
        """(first panel, panels) of each slice."""
        each, left = self.lines
        ends = [LINE_PANELS * (number * each + min(number, left)) for number in range(self.slices + 1)]
        return [(first, min(end, self.panels) - first) for first, end in itertools.pairwise(ends)]
