"""What the mutation run (mutation.py) takes of levels and maps that are built together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from spconv_compiler.arrays import as_array
from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.level_maps import LEVEL_COUNTS, LEVEL_ROWS, MAP_BUFFERS, Span, lay_out
from spconv_compiler.level_options import LevelMap, LevelOptions, MadeLevel, submanifold
from spconv_compiler.runtime.calls import host_call
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.runtime.sim import SimDevice
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.mutation_cross import Run
from spconv_compiler.sim.native.machine import NativeMachine

_DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1))
_UP = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), transposed=True)
_CUBE = submanifold((3, 3, 3))
_BOXES = [Box((0, 0, 0, 0), (0, last, last, last)) for last in (39, 20, 10)]
_OPTIONS = LevelOptions(
    (MadeLevel(0, _DOWN), MadeLevel(1, _DOWN)),
    (LevelMap(0, 0, _CUBE), LevelMap(0, 1, _DOWN), LevelMap(1, 2, _DOWN), LevelMap(2, 2, _CUBE), LevelMap(1, 0, _UP)),
    "gfx950-sim",
)
# Level 1 has more rows than a tile of the sort.
_LAYOUT = lay_out(_OPTIONS, _BOXES, [1500, 3200, 900])


def level_ops() -> Iterator[tuple[str, Artifact, Run]]:
    """(name, artifact, how to run it) of kernels that build several levels and maps."""
    artifact = compile_options(_OPTIONS)
    wanted = _built(artifact, {})

    def compare(replaced: Mapping[str, Kernel]) -> None:
        if not np.array_equal(_built(artifact, replaced), wanted):
            raise Fault("the result is another one")

    yield "levels and maps together", artifact, compare


def _built(artifact: Artifact, replaced: Mapping[str, Kernel]) -> Any:
    """All that the kernels leave, as words."""
    device = SimDevice(lambda kernels: NativeMachine({**kernels, **replaced}))
    plan = GpuPlan(artifact.plan, device, artifact.object, keep=(LEVEL_ROWS, LEVEL_COUNTS, *MAP_BUFFERS))
    cells = np.random.default_rng(0).choice(40**3, 1500, replace=False)
    place = np.unravel_index(cells, (40, 40, 40))
    coords = np.stack([np.zeros_like(cells), *place], axis=1).astype(np.int32)
    with host_call(device) as call:
        given = {"coords": call.place("coords", as_array(coords, "coords"))}
        given["places"] = call.place("places", as_array(_LAYOUT.places, "places"))
        kept = plan.run("map", _LAYOUT.symbols, given, call)
    parts = [(LEVEL_ROWS, _LAYOUT.rows_of_level(level)) for level in (1, 2)]
    parts += [(LEVEL_COUNTS, Span(8 * level, 8)) for level in (1, 2)]
    parts += [item for number in range(len(_OPTIONS.maps)) for item in _LAYOUT.of_map(number).items()]
    words = [device.memory.copy_out(kept[name].pointer + span.first, span.nbytes) for name, span in parts]
    return np.concatenate(words)
