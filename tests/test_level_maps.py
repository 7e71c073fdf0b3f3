"""All levels and maps of a network in nine launches, on the simulator: against the dictionary reference, exactly."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conv_cases import voxels

from spconv_compiler import compiler
from spconv_compiler import reference_cross as rc
from spconv_compiler.arrays import as_array
from spconv_compiler.artifact import Artifact
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError, SpconvError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.level_maps import LEVEL_COUNTS, LEVEL_ROWS, Layout, Span, lay_out, load_levels
from spconv_compiler.level_options import LevelMap, LevelOptions, MadeLevel, submanifold
from spconv_compiler.passes.gpu import level_lookup, level_marks
from spconv_compiler.passes.gpu.row_masks import FIRST_TILE_BIT, TAP_MASK, key_bits
from spconv_compiler.runtime.calls import host_call
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.mutation import barriers_of, wait_report
from spconv_compiler.sim.mutation_levels import level_ops
from spconv_compiler.targets import code_target, get_target

TARGET = "gfx950-sim"
DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1))
FLAT = ConvGeometry((3, 3, 3), (2, 2, 2), (0, 1, 1))
LAST = ConvGeometry((3, 1, 1), (2, 1, 1))
Int32 = npt.NDArray[np.int32]


def options_of(levels: list[tuple[int, ConvGeometry]], maps: list[tuple[int, int, ConvGeometry]]) -> LevelOptions:
    made = tuple(MadeLevel(*level) for level in levels)
    return LevelOptions(made, tuple(LevelMap(*item) for item in maps), TARGET)


def up(geometry: ConvGeometry) -> ConvGeometry:
    """The inverse."""
    return ConvGeometry(*(getattr(geometry, name) for name in AXES), transposed=True)


AXES = ("kernel_size", "stride", "padding", "dilation")
SUBM = submanifold((3, 3, 3))
# CenterPoint's: four levels, three strided maps and a last one along z; below it a U-Net's way up again.
BACKBONE = options_of(
    [(0, DOWN), (1, DOWN), (2, FLAT), (3, LAST)],
    [*((level, level, SUBM) for level in range(4)), (0, 1, DOWN), (1, 2, DOWN), (2, 3, FLAT), (3, 4, LAST)],
)
UNET = options_of(
    [(0, ConvGeometry((2, 2, 2), (2, 2, 2))), (1, ConvGeometry((3, 2, 2), (1, 2, 2)))],
    [
        (0, 0, submanifold((5, 1, 3), (2, 1, 3))),
        (0, 1, ConvGeometry((2, 2, 2), (2, 2, 2))),
        (1, 2, ConvGeometry((3, 2, 2), (1, 2, 2))),
        (2, 1, up(ConvGeometry((3, 2, 2), (1, 2, 2)))),
        (1, 0, up(ConvGeometry((2, 2, 2), (2, 2, 2)))),
    ],
)
SMALL = options_of([(0, DOWN)], [(0, 0, SUBM), (0, 1, DOWN), (1, 0, up(DOWN))])


def grid_of(geometry: ConvGeometry) -> rc.Grid:
    return rc.Grid.of(*(getattr(geometry, name) for name in AXES))


class Built:
    """Levels and maps of coordinates, as lists."""

    def __init__(self, options: LevelOptions, coords: Int32, layout: Layout, launched: list[str] | None = None) -> None:
        plan = load_levels(options)
        if launched is not None:
            plan.device.watch = lambda name, counts: launched.append(name)  # type: ignore[attr-defined]
        places = layout.places
        with host_call(plan.device) as call:
            given = {"coords": call.place("coords", as_array(coords, "coords"))}
            given["places"] = call.place("places", as_array(places, "places"))
            kept = plan.run("map", layout.symbols, given, call)
            self._kept, self._memory = kept, plan.device.memory  # type: ignore[attr-defined]
        self.layout, self.options = layout, options
        made = range(1, len(layout.rooms))
        self.counts = [self._words(LEVEL_COUNTS, Span(8 * level, 8)).tolist() for level in made]
        self.levels = [coords, *(self._part(LEVEL_ROWS, level) for level in made)]

    def _part(self, name: str, level: int) -> Int32:
        return self._words(name, self.layout.rows_of_level(level)).reshape(-1, 4)

    def _words(self, name: str, span: Span) -> Int32:
        """A part of a buffer, all of which kernels must have written."""
        found: Int32 = self._memory.copy_out(self._kept[name].pointer + span.first, span.nbytes).view(np.int32)
        return found

    def of_map(self, number: int) -> dict[str, Int32]:
        spans = self.layout.of_map(number)
        return {name: self._words(name, span) for name, span in spans.items()}

    def triples(self, number: int) -> list[tuple[int, int, int]]:
        """(tap, input, output) of every pair; checks what gemms take for granted of the lists."""
        taps, rows = self._taps(number), self.layout.rooms[self.options.maps[number].writes]
        parts = self.of_map(number)
        order, table = parts["row_order"].reshape(-1, 16), parts["sorted_table"].reshape(-1, taps, 16)
        assert sorted(order[order >= 0].tolist()) == list(range(rows))
        tile, tap, lane = np.nonzero(table >= 0)
        assert (order[tile, lane] >= 0).all()
        for block, count in enumerate(parts["step_count"]):
            steps = parts["steps"].reshape(-1, taps)[block]
            present = (table[16 * block : 16 * block + 16] >= 0).any(axis=2)
            wanted = [
                int(t | sum(1 << FIRST_TILE_BIT + n for n in np.flatnonzero(present[:, t])))
                for t in np.flatnonzero(present.any(axis=0))
            ]
            assert (steps[:count].view(np.uint32)).tolist() == wanted and not steps[count:].any()
            assert all(step & TAP_MASK < taps for step in wanted)
        assert np.array_equal(order.ravel()[:rows], self._sorted_rows(number, order, table))
        columns = (tap, table[tile, tap, lane], order[tile, lane])
        return sorted(zip(*(column.tolist() for column in columns), strict=True))

    def _sorted_rows(self, number: int, order: Int32, table: Int32) -> Int32:
        """Rows by the places of their masks in the Gray code, equal ones in their order."""
        words = np.array(key_bits(self.options.maps[number].geometry.kernel_size), np.int64)
        rows = np.flatnonzero(order.ravel() >= 0)
        present = (table >= 0).transpose(0, 2, 1).reshape(-1, table.shape[1])[rows]
        masks = np.zeros(len(rows), np.int64)
        masks[order.ravel()[rows]] = np.bitwise_or.reduce(np.where(present, words, 0), axis=1)
        for shift in (1, 2, 4, 8, 16):
            masks ^= masks >> shift
        return np.argsort(masks, kind="stable").astype(np.int32)

    def _taps(self, number: int) -> int:
        return math.prod(self.options.maps[number].geometry.kernel_size)


def boxes_of(options: LevelOptions, first: Box, shape: tuple[int, int, int] | None) -> list[Box]:
    boxes, shapes = [first], [shape]
    for level in options.levels:
        parent = shapes[level.parent]
        shapes.append(None if parent is None else level.geometry.output_shape(parent))
        box = level.geometry.output_box(boxes[level.parent], shapes[-1])
        assert box is not None
        boxes.append(box)
    return boxes


def around(coords: Int32) -> Box:
    return Box(tuple(coords.min(axis=0).tolist()), tuple(coords.max(axis=0).tolist()))


def check(
    options: LevelOptions, coords: Int32, shape: tuple[int, int, int] | None, room: Any = lambda count: count + 37
) -> Built:
    """Builds with room to spare and compares every level and every pair with the reference."""
    box = around(coords) if shape is None else Box((0, 0, 0, 0), (int(coords[:, 0].max()), *(n - 1 for n in shape)))  # type: ignore[arg-type]
    boxes = boxes_of(options, box, shape)
    sets, shapes = [coords], [shape]
    for level in options.levels:
        parent = shapes[level.parent]
        shapes.append(None if parent is None else level.geometry.output_shape(parent))
        found = rc.outputs(sets[level.parent], grid_of(level.geometry), shape=shapes[-1])
        sets.append(np.array(found, np.int32).reshape(-1, 4))
    rooms = [len(coords), *(room(len(rows)) for rows in sets[1:])]
    built = Built(options, coords, lay_out(options, boxes, rooms))
    for number, rows in enumerate(sets):
        kept = min(len(rows), rooms[number])
        assert number == 0 or built.counts[number - 1] == [kept, len(rows)]
        assert np.array_equal(built.levels[number][:kept], rows[:kept])
        assert (built.levels[number][kept:, 0] == -1).all()
        sets[number] = rows[:kept]
    for number, item in enumerate(options.maps):
        fine, coarse = (item.writes, item.reads) if item.geometry.transposed else (item.reads, item.writes)
        known = rc.triples(sets[fine], sets[coarse], grid_of(item.geometry))
        wanted = [(t, c, f) if item.geometry.transposed else (t, f, c) for t, f, c in known]
        assert built.triples(number) == sorted(wanted), item
    return built


def test_backbone() -> None:
    """Rows in any order, two batches, the shape of a grid."""
    launched: list[str] = []
    coords = voxels(700, (41, 24, 20), batches=2, seed=1)
    check(BACKBONE, coords, (41, 24, 20))
    boxes = boxes_of(BACKBONE, around(coords), (41, 24, 20))
    Built(BACKBONE, coords, lay_out(BACKBONE, boxes, [700, 999, 999, 999, 999]), launched)
    assert len(launched) == 9


def test_way_down_and_up_again() -> None:
    """Negative coordinates, no edge; a level made from a made one by a kernel without overlap; inverse maps."""
    check(UNET, voxels(300, (7, 12, 11), batches=3, seed=2) - np.array([0, 5, 7, 30], np.int32), None)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 255, 256, 257, 1023, 1024, 1025])
def test_rows_around_tiles(rows: int) -> None:
    check(UNET, voxels(rows, (9, 16, 16), seed=rows), (9, 16, 16), room=lambda count: count)


def test_nothing() -> None:
    shape = (9, 16, 16)
    box = Box((0, 0, 0, 0), (0, 8, 15, 15))
    built = Built(UNET, np.zeros((0, 4), np.int32), lay_out(UNET, boxes_of(UNET, box, shape), [0, 20, 5]))
    assert built.counts == [[0, 0], [0, 0]] and all((rows == -1).all() for rows in built.levels[1:])
    assert not any(built.triples(number) for number in range(len(UNET.maps)))


def test_less_room_than_outputs() -> None:
    """The last rows are left out, and no map names them; what is made of a level is made of all its voxels."""
    coords, shape = voxels(200, (8, 12, 12), seed=4), (8, 12, 12)
    built = check(SMALL, coords, shape, room=lambda count: count // 2)
    assert built.counts[0][0] < built.counts[0][1]


def test_repeated_coordinates() -> None:
    """The lowest row is the neighbour, and every row has its own list."""
    coords = np.array([[0, 1, 1, 2], [0, 1, 1, 1], [0, 1, 1, 2], [0, 1, 1, 1]], np.int32)
    boxes = boxes_of(SMALL, Box((0, 0, 0, 0), (0, 3, 3, 3)), (4, 4, 4))
    built = Built(SMALL, coords, lay_out(SMALL, boxes, [4, 9]))
    left, right = [(12, 1, 0), (12, 1, 2)], [(14, 0, 1), (14, 0, 3)]
    own = [(13, 0, 0), (13, 0, 2), (13, 1, 1), (13, 1, 3)]
    assert built.triples(0) == left + own + right
    distinct = list(rc.triples(coords[:2], built.levels[1][: built.counts[0][0]], grid_of(DOWN)))
    assert built.triples(1) == sorted((tap, fine, coarse) for tap, fine, coarse in distinct)
    assert built.triples(2) == sorted(
        (tap, coarse, fine + twin) for tap, fine, coarse in distinct for twin in (0, 2)
    )


@pytest.mark.parametrize(
    ("levels", "maps", "message"),
    [
        ([(1, DOWN)], [(0, 0, SUBM)], "level 1 is made of level 1; accepted: one before it"),
        ([(0, ConvGeometry((1, 1, 1), (2, 2, 2)))], [(0, 0, SUBM)], "kernels not below strides"),
        ([(0, ConvGeometry((3, 3, 3), (1, 1, 1), dilation=(2, 2, 2)))], [(0, 0, SUBM)], "dilation 1"),
        ([(0, up(DOWN))], [(0, 0, SUBM)], "accepted: strided"),
        ([], [], "there are no maps"),
        ([(0, DOWN)], [(0, 2, DOWN)], "map 0 is of levels 0 and 2; accepted: 0 to 1"),
    ],
)
def test_what_is_refused(levels: Any, maps: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        options_of(levels, maps)


def test_boxes_that_are_too_large() -> None:
    options = options_of([], [(0, 0, SUBM)])
    with pytest.raises(InputError, match="level 0 has a box of 2147483648 cells; accepted here: below 2147483648"):
        lay_out(options, [Box((0, 0, 0, 0), (0, 2047, 1023, 1023))], [1])
    full = Box((0, 0, 0, 0), (0, 2047, 1023, 1022))
    with pytest.raises(InputError, match="level 0 may have 1073741824 voxels; accepted here: at most 1073741823"):
        lay_out(options, [full], [2**30])
    options = options_of([(0, DOWN)], [(0, 1, DOWN)])
    with pytest.raises(InputError, match="level 1 may have 1073741824 voxels"):
        lay_out(options, [full, full], [2**27, 1])


# Code: (module, function, what stands there instead, given the right one).
BROKEN: dict[str, tuple[Any, str, Any]] = {
    "a run is marked one short": (
        level_marks, "_span", lambda right: lambda *a: (right(*a)[0], (right(*a)[1] - 1).max(0)),
    ),
    "padding is forgotten": (
        level_lookup._Finder, "_met", lambda right: lambda self, axis, place, tap: right(self, axis, place + 1, tap),
    ),
    "a rank counts its own cell": (
        level_marks, "rank_of", lambda right: lambda pair, cell: (right(pair, cell)[0], right(pair, cell)[1] + 1),
    ),
    "masks are no keys": (level_lookup, "_record", lambda right: lambda key, row, *rest: right(key * 0, row, *rest)),
    "rows begin a word too late": (
        level_marks, "write_cells", lambda right: lambda out, row, *rest: right(out, row + 1, *rest) - 1,
    ),
    "given rows are taken as sorted": (level_marks, "rows_of_ranks", lambda right: lambda wave: lambda *_: None),
    "the first of equal rows is not the lowest": (
        level_marks, "atomic", lambda right: lambda kind, *rest: right(kind.replace("umin", "umax"), *rest),
    ),
}  # fmt: skip
def works(coords: Int32) -> bool:
    load_levels.cache_clear()
    try:
        check(SMALL, coords, (7, 9, 8))
    except (AssertionError, SpconvError):
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *BROKEN])
def test_broken_code_is_noticed(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spconv_compiler.level_maps.compile_options", uncached)
    coords = voxels(300, (7, 9, 8), seed=3)
    if name is not None:
        module, function, instead = BROKEN[name]
        monkeypatch.setattr(module, function, instead(getattr(module, function)))
    assert works(coords) == (name is None)
    load_levels.cache_clear()


def uncached(options: LevelOptions) -> Artifact:
    """Compiled anew: what is broken must not be found again."""
    target = code_target(get_target(options.target))
    return Artifact("", compiler._build(dataclasses.replace(options, target=target.name), target))


@pytest.mark.slow
def test_weakened_kernels_are_noticed() -> None:
    """Every wait and every barrier is needed; a no-op may only be padding that no path or no rule reaches."""
    for name, artifact, run in level_ops():
        found = barriers_of(artifact, run)
        assert found.caught == found.total, f"{name}: {found.missed}"
        for kernel in CodeObject(artifact.object).kernels.values():
            missed = wait_report(kernel).missed
            assert all(": s_nop" in line for line in missed), missed
