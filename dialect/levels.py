"""The op of levels `spconv` and `stages` that builds all coordinate levels and maps of a network: level_maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect.fields import Operand
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.level_options import LevelMap, LevelOptions, MadeLevel

# Numbers of a level: its parent, then kernel size, stride, padding. Of a map: the levels that it reads and writes,
# whether it is transposed, then kernel size, stride, padding, dilation.
_LEVEL_NUMBERS, _MAP_NUMBERS = 10, 15


@register_operation(SpconvDialect)
class LevelMapsOp(SpconvOp):
    """Coordinate levels, and maps between them as gemms that own their rows read them; of GPUs.

    Args:
        coords: `!spconv.coords<32>`, level 0, any order.
        places: tensor<?xi32>, the numbers of a run (level_options.py).
        levels: for each made level array<i64: parent, kernel_size (z, y, x), stride, padding>.
        maps: for each map array<i64: reads, writes, transposed, kernel_size, stride, padding, dilation>.

    It has no result: what it makes are buffers of the plan, which a run keeps.
    """

    OPERATION_NAME = "spconv.level_maps"
    PURE = False

    coords = Operand(0)
    places = Operand(1)

    def options(self, target: str) -> LevelOptions:
        """Levels and maps, for a target.

        Raises:
            InputError: see LevelOptions.
        """
        levels = [MadeLevel(numbers[0], _geometry(numbers[1:])) for numbers in self._numbers("levels")]
        maps = [
            LevelMap(numbers[0], numbers[1], _geometry(numbers[3:], transposed=bool(numbers[2])))
            for numbers in self._numbers("maps")
        ]
        return LevelOptions(tuple(levels), tuple(maps), target)

    def _numbers(self, name: str) -> list[list[int]]:
        return [list(ir.DenseI64ArrayAttr(entry)) for entry in ir.ArrayAttr(self.attribute(name))]

    def verify(self) -> Iterable[str]:
        for name, count in (("levels", _LEVEL_NUMBERS), ("maps", _MAP_NUMBERS)):
            entries = self.attribute(name)
            fits = isinstance(entries, ir.ArrayAttr) and all(
                isinstance(entry, ir.DenseI64ArrayAttr) and len(entry) == count for entry in entries
            )
            if not fits:
                yield f"{name} is {entries}; accepted: an array of array<i64> with {count} numbers each"
                return
        try:
            self.options("")
        except InputError as error:
            yield str(error)


def level_maps(coords: ir.Value, places: ir.Value, options: LevelOptions) -> None:
    """Builds a `spconv.level_maps`."""
    levels = [(level.parent, *_axes(level.geometry)[:9]) for level in options.levels]
    maps = [
        (item.reads, item.writes, int(item.geometry.transposed), *_axes(item.geometry)) for item in options.maps
    ]
    attributes = {"levels": _entries(levels), "maps": _entries(maps)}
    LevelMapsOp.create([], [coords, places], attributes)


def _axes(geometry: ConvGeometry) -> tuple[int, ...]:
    return (*geometry.kernel_size, *geometry.stride, *geometry.padding, *geometry.dilation)


def _geometry(numbers: Sequence[int], *, transposed: bool = False) -> ConvGeometry:
    """From kernel size, stride, padding and, if it is there, dilation."""
    threes = [(numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(0, len(numbers), 3)]
    dilation = threes[3] if len(threes) > 3 else (1, 1, 1)
    return ConvGeometry(threes[0], threes[1], threes[2], dilation, transposed)


def _entries(numbers: Iterable[Sequence[int]]) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.DenseI64ArrayAttr.get(list(entry)) for entry in numbers])
