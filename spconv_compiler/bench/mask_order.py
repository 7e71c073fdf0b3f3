"""How like the masks of sorted rows are, and how even the work of workgroups is: counted from kernel maps alone.

    python -m spconv_compiler.bench.mask_order [FRAME …]

Rows are put in the order of passes/gpu/row_masks.py, and counted is how many taps 16, 64, 128 and 256 of them have
together, over what they have on average: what is executed over what is useful where so many rows share a decision.
Beside it the same with the keys of 16 bits that targets with large matrix instructions take, and with the mask itself
as the key. Then the shares that workgroups of output_stationary get (schedules/deal.py): the products of the largest
over those of the mean one. The chip is not done before that one is, and the timing model does not know it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.bench import frames, sim_goals
from spconv_compiler.schedules.deal import TILE_ROWS, Deal
from spconv_compiler.schedules.output_stationary import BLOCK_ROWS, LEAST_TILES, MAX_COLUMNS
from spconv_compiler.tools.console import guarded, print_table, say

SIZES = (16, 64, 128, 256)
UPPER_BITS = 16
# Output channels for which shares are counted.
WIDTHS = (128, 256, 512)
_SHIFTS = (1, 2, 4, 8, 16)


def keys(present: npt.NDArray[np.bool_], kernel_size: Sequence[int], bits: int | None = None) -> npt.NDArray[np.int64]:
    """The key of every row: present bool [rows, taps]; of its bits all, or so many upper ones."""
    from spconv_compiler.passes.gpu.row_masks import KEY_BITS, key_bits

    found = np.zeros(len(present), np.int64)
    for tap, word in enumerate(key_bits(kernel_size)):
        found |= np.where(present[:, tap], word, 0)
    for shift in _SHIFTS:
        found ^= found >> shift
    return found >> (0 if bits is None else KEY_BITS - bits)


def mask_keys(present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The mask itself, tap 0 lowest."""
    found: npt.NDArray[np.int64] = present @ (1 << np.arange(present.shape[1], dtype=np.int64))
    return found


def taps_of_blocks(present: npt.NDArray[np.bool_], rows: int) -> npt.NDArray[np.int64]:
    """Taps that each block of so many rows has, in the order given."""
    starts = np.arange(0, len(present), rows)
    found: npt.NDArray[np.int64] = np.logical_or.reduceat(present, starts).sum(axis=1)
    return found


def together(present: npt.NDArray[np.bool_], order: npt.NDArray[np.int64], rows: int) -> float:
    """Taps that so many rows which follow one another have together, over those that one has on average."""
    sizes = np.minimum(rows, len(present) - np.arange(0, len(present), rows))
    return float((taps_of_blocks(present[order], rows) * sizes).sum() / present.sum())


def busiest(present: npt.NDArray[np.bool_], order: npt.NDArray[np.int64], channels: int) -> float:
    """Products of the largest share over those of the mean one, for so many output channels on gfx950."""
    from spconv_compiler.targets import GpuTarget, get_target

    target = get_target("gfx950")
    assert isinstance(target, GpuTarget)
    work = taps_of_blocks(present[order], TILE_ROWS)
    slices = -(-channels // MAX_COLUMNS)
    deal = Deal.over(target.compute_units, target.chiplets, slices, BLOCK_ROWS // TILE_ROWS, LEAST_TILES)
    each = np.array([part.sum() for part in np.array_split(work, deal.count(len(work)))])
    return float(each.max() / each.mean())


def figures(frame: frames.Frame) -> dict[str, Any]:
    """Of a frame, by the number of rows: `all_bits`, `upper_bits`, `mask`; and `busiest`, by output channels."""
    present = frame.table >= 0
    size = (3, 3, 3)
    orders = {
        "all_bits": np.argsort(keys(present, size), kind="stable"),
        "upper_bits": np.argsort(keys(present, size, UPPER_BITS), kind="stable"),
        "mask": np.argsort(mask_keys(present), kind="stable"),
    }
    shares = {width: busiest(present, orders["all_bits"], width) for width in WIDTHS}
    found = {name: {rows: together(present, order, rows) for rows in SIZES} for name, order in orders.items()}
    return {"frame": frame.name, "N": len(present), "pairs": frame.pairs, **found, "busiest": shares}


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells."""
    columns = ["frame", "voxels", "pairs/voxel", *(f"{size} rows" for size in SIZES)]
    columns += [f"{size}, {UPPER_BITS} bits" for size in SIZES[:3]] + [f"{size}, mask" for size in SIZES[::3]]
    columns += [f"busiest share, C = {width}" for width in WIDTHS]
    cells = []
    for row in rows:
        shown = [row["all_bits"][size] for size in SIZES] + [row["upper_bits"][size] for size in SIZES[:3]]
        shown += [row["mask"][size] for size in SIZES[::3]] + [row["busiest"][width] for width in WIDTHS]
        density = f"{row['pairs'] / row['N']:.1f}"
        cells.append([row["frame"], f"{row['N']:,}", density, *(f"{value:.2f}" for value in shown)])
    return columns, cells


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table of some frames, or of all real ones and the shapes of pull request 942."""
    parser = argparse.ArgumentParser(prog="python -m spconv_compiler.bench.mask_order", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("frames", nargs="*", metavar="FRAME", help='as of "spconv-bench sim --goals --frame"')
    parser.add_argument("--data", type=Path, metavar="DIR", help="point clouds (default: as spconv-bench)")
    arguments = parser.parse_args(argv)
    return guarded("mask_order", lambda: _run(arguments.frames or [None], arguments.data or frames.default_data()))


def _run(names: Sequence[str | None], data: Path) -> int:
    found = [frame for name in names for frame, _ in sim_goals.cases(data, name, WIDTHS[:1])]
    print_table(*table([figures(frame) for frame in found]))
    say("taps of rows together over those of one on average; products of the largest share over the mean one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
