"""A network's work on a GPU with room for so many voxels, put together once: places, launches, copies, in order.

Everything has its place before anything is queued. Every level has room for a fixed number of rows, and the number of
those that are there is a pair of words on the device (passes/gpu/output_cells.py): what is left over lies in batch −1,
where no voxel meets another. So nothing depends on what the host knows of a frame. captured.py runs the work.

Values share memory by their lives, all work being in order; scratch is shared by everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spconv_compiler.coordinates import Box
from spconv_compiler.driver import load_conv
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.level_maps import Layout, lay_out, load_levels
from spconv_compiler.map_request import MapRequest
from spconv_compiler.network.kernels import step_options
from spconv_compiler.network.level_plan import boxes_of
from spconv_compiler.network.memory import last_uses
from spconv_compiler.network.places import (
    COORD_BYTES,
    COUNT_WORDS,
    DTYPES,
    Counted,
    Joined,
    Launches,
    Level,
    OnRows,
    Place,
    direct_reads,
    in_torch,
    loose_step,
    makes_levels,
    rounded,
    take,
)
from spconv_compiler.network.plan import NetworkPlan, Step
from spconv_compiler.runtime.calls import TensorCall
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.sparse_driver import load_sparse


@dataclasses.dataclass(eq=False, repr=False)
class QueuedNetwork:
    """See the module. Built in memory of torch's current stream.

    Args:
        steps: gives the kernels of steps, their packed weights and vectors (steps.StepNetwork).
        requests: of every map between two sets. room: rows of every level.
        call: of the stream that it is built on. like: a tensor on that device.
        together: whether all levels and maps are built together where they can be.
        hand_out: whether the last step, if it is a convolution, writes to a new tensor in every call.

    Attributes:
        work: in order. loose: the step whose launches come last and go to a new tensor, or None.
        levels: by number. values: the place of every value. tensors: the tensors of results.
        status: int32, COUNT_WORDS a level. counted: whether levels are made, whose numbers the work finds.

    Raises:
        InputError: a level's box is larger than kernels accept. LaunchError: out of memory.
    """

    plan: NetworkPlan
    steps: Any
    requests: Mapping[int, MapRequest]
    room: tuple[int, ...]
    call: TensorCall
    like: torch.Tensor
    together: bool = dataclasses.field(default=True, kw_only=True)
    hand_out: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        plan = self.plan
        self.device: Any = self.call.device
        self.index = self.device.index
        self._scratch: list[tuple[Mapping[str, int], dict[str, Buffer]]] = []
        self.work: list[Launches | Joined | OnRows | Counted] = []
        self._maps: dict[tuple[Any, ...], tuple[Mapping[str, int], dict[str, Buffer]]] = {}
        self._together: Layout | None = None
        self._level_plan: Any = self.steps.level_plan if self.together and makes_levels(plan) else None
        self.loose = loose_step(plan) if self.hand_out else None
        self._direct = set() if self.loose is None else direct_reads(plan, self.loose)
        self.counted = makes_levels(plan)
        self.status = self.like.new_empty((COUNT_WORDS * len(plan.levels),), dtype=torch.int32)
        self.levels = self._make_levels()
        if self.counted:
            self.work.append(Counted())
        self.tensors: dict[int, torch.Tensor] = {}
        self.values = self._place_values()
        for number, step in enumerate(plan.steps):
            self._add(number, step)
        self._place_scratch()

    def tensor(self, kind: str, number: int) -> torch.Tensor:
        """Where the work leaves a result, with all rows that there is room for."""
        return self.levels[number].coords if kind == "level" else self.tensors[number]

    def _make_levels(self) -> dict[int, Level]:
        boxes = boxes_of(self.plan, self.requests)
        if self._level_plan is not None:
            try:
                layout = lay_out(self._level_plan.options, boxes, self.room)
                load_levels(layout.options, self.index).plan.check(layout.symbols)
                self._together = layout
            except (InputError, LaunchError):
                # A grid too large for marks, or more rows than offsets reach: every map is built by itself.
                self._together = None
        return self._levels_one_by_one(boxes) if self._together is None else self._levels_together(self._together)

    def _levels_together(self, layout: Layout) -> dict[int, Level]:
        """All levels and their maps by one plan."""
        rows = self.like.new_empty((layout.symbols["coarse_rows"], 4), dtype=torch.int32)
        words = torch.from_numpy(layout.places).to(f"cuda:{self.index}")
        made = {0: self._level(0, layout.boxes[0])}
        for number in range(1, len(layout.rooms)):
            first = layout.rows_of_level(number).first // COORD_BYTES
            made[number] = self._level(number, layout.boxes[number], rows.narrow(0, first, self.room[number]))
        given = {
            "coords": made[0].place,
            "places": Place(words, words.data_ptr(), layout.places.nbytes),
            "level_rows": Place(rows, rows.data_ptr(), rows.nbytes),
            "level_counts": Place(self.status, self.status.data_ptr(), 4 * COUNT_WORDS * len(self.plan.levels)),
        }
        kept = self._queue_group(load_levels(layout.options, self.index), "map", layout.symbols, given)
        for number in range(len(layout.options.maps)):
            parts: dict[str, Buffer] = {
                name: Place(kept[name], kept[name].pointer + span.first, span.nbytes)
                for name, span in layout.of_map(number).items()
            }
            self._maps["together", number] = {}, parts
        return made

    def _built_together(self, step: Step) -> tuple[Mapping[str, int], dict[str, Buffer]] | None:
        """(symbols of a gemm, what it reads of its map) where the map is one of those that are built together."""
        if self._together is None or (step.map, step.inverse) not in self._level_plan.numbers:
            return None
        number = self._level_plan.numbers[step.map, step.inverse]
        inputs, outputs = (self.room[level] for level in self._levels_of(step))
        transposed = self._together.options.maps[number].geometry.transposed
        fine, coarse = (outputs, inputs) if transposed else (inputs, outputs)
        symbols = {"rows": fine, "coarse_rows": coarse, "cells": 0, "threads": 1}
        return symbols, self._maps["together", number][1]

    def _levels_of(self, step: Step) -> tuple[int, int]:
        """The levels that a step reads and writes."""
        return self.plan.values[dict(step.reads)["features"]].level, self.plan.values[step.out].level

    def _levels_one_by_one(self, boxes: Sequence[Box]) -> dict[int, Level]:
        made: dict[int, Level] = {}
        for number, level in enumerate(self.plan.levels):
            if level.argument is not None:
                made[number] = self._level(number, boxes[number])
        for number, map_ in enumerate(self.plan.maps):
            if map_.makes_level:
                request, reads = self.requests[number], made[map_.reads]
                made[map_.writes] = self._level(map_.writes, boxes[map_.writes])
                self._add_outputs(request, reads, made[map_.writes])
        return made

    def _level(self, number: int, box: Box, coords: torch.Tensor | None = None) -> Level:
        room, words = self.room[number], 4 * COUNT_WORDS
        coords = self.like.new_empty((room, 4), dtype=torch.int32) if coords is None else coords
        return Level(coords, Place(self.status, self.status.data_ptr() + words * number, words), box, room)

    def _add_outputs(self, request: MapRequest, reads: Level, writes: Level) -> None:
        kernel: Any = request.kernel.on(self.index)
        symbols, width = kernel.output_numbers(reads.box, writes.box)
        mapper = kernel.outputs_by(symbols, reads.room, width)
        kernel = load_sparse(dataclasses.replace(kernel.options, key_width=width, mapper=mapper)).on(self.index)
        transposed = request.geometry.transposed
        inputs, outputs = ("coarse_rows", "rows") if transposed else ("rows", "coarse_rows")
        numbers = {**symbols, inputs: reads.room, outputs: writes.room, "threads": 1}
        given = {"coords": reads.place, "coords_count": reads.count, "out": writes.place, "out_count": writes.count}
        self._queue_group(kernel.loaded, "coords", numbers, given)

    def _queue_group(
        self, plan: GpuPlan, group: str, symbols: Mapping[str, int], given: Mapping[str, Buffer]
    ) -> dict[str, Buffer]:
        """Gives a group's buffers their places and notes its launches; returns what later groups read."""
        if group != "output":
            # What a gemm's plan asks of boxes is for the map that it could have built.
            plan.plan.check(symbols)
        sizes, scratch = plan.sizes(group, symbols, given)
        kept = self.call.allocate_all(sizes)
        buffers = {**given, **kept}
        self._scratch.append((scratch, buffers))
        self.work.append(Launches(plan, group, symbols, buffers))
        return dict(kept)

    def _place_values(self) -> dict[int, Place]:
        """Results, arguments and what torch reads or writes have tensors of their own; the others share memory."""
        plan = self.plan
        own = {number for kind, number in (*plan.results, *plan.arguments) if kind == "value"}
        for step in plan.steps:
            if in_torch(step):
                own |= {step.out, *(number for _, number in step.reads)}
        places: dict[int, Place] = {}
        loose = set() if self.loose is None else {plan.steps[self.loose].out}
        for number in own - loose - self._direct:
            value = plan.values[number]
            shape = (self.room[value.level], value.channels)
            self.tensors[number] = made = self.like.new_empty(shape, dtype=DTYPES[value.dtype])
            places[number] = Place(made, made.data_ptr(), shape[0] * value.row_bytes)
        # These have a place in every call anew.
        places |= dict.fromkeys(loose | self._direct, Place(None, 0, 0))
        last, free = last_uses(plan), list[Buffer]()
        for place, step in enumerate(plan.steps):
            if step.out not in places:
                value = plan.values[step.out]
                nbytes = self.room[value.level] * value.row_bytes
                found = take(free, nbytes) or self.call.allocate_all({step.name: nbytes})[step.name]
                places[step.out] = Place(found, found.pointer, found.nbytes)
            done = {number for _, number in step.reads if last[number] == place} | ({step.out} - last.keys())
            free += [places[number].owner for number in done if number not in own]
        return places

    def _add(self, number: int, step: Step) -> None:
        if step.operation == "concat":
            rows = self.room[self.plan.values[step.out].level]
            parts = tuple((self.values[value], self.plan.values[value].row_bytes) for _, value in step.reads)
            self.work.append(Joined(parts, self.values[step.out], rows))
            return
        if in_torch(step):
            run = self.steps.on_rows(number, {name: self.tensors[value] for name, value in step.reads})
            self.work.append(OnRows(run, self.values[step.out]))
            return
        kernel, packed, bias = self.steps.constants(number, self.index)
        assert step.map is not None
        submanifold = self.plan.maps[step.map].submanifold
        found = self._built_together(step)
        if found is None:
            found = self._submanifold(step, kernel) if submanifold else self._between(step, kernel)
        symbols, pairs = found
        given: dict[str, Buffer] = {**pairs, **packed, "out": self.values[step.out]}
        given |= {name: self.values[value] for name, value in step.reads}
        if bias is not None:
            given["bias"] = Place(bias.source, bias.pointer, bias.nbytes)
        self._queue_group(kernel.loaded, "output", symbols, given)

    def _submanifold(self, step: Step, kernel: Any) -> tuple[Mapping[str, int], dict[str, Buffer]]:
        key = (step.map, kernel.map_signature)
        if key not in self._maps:
            level = self.levels[self.plan.values[step.out].level]
            maker = kernel
            if kernel.key_width(level.box) == 64:
                maker = load_conv(dataclasses.replace(kernel.options, key_width=64)).on(self.index)
            maker = maker.map_maker(level.box, level.room)
            options = kernel.options
            symbols = {**level.box.symbols(options.kernel_size, options.dilation), "rows": level.room, "threads": 1}
            self._maps[key] = symbols, self._queue_group(maker.loaded, "pairs", symbols, {"coords": level.place})
        return self._maps[key]

    def _between(self, step: Step, kernel: Any) -> tuple[Mapping[str, int], dict[str, Buffer]]:
        assert step.map is not None
        key = (step.map, step.inverse, kernel.signature("pairs"))
        if key not in self._maps:
            inputs = self.levels[self.plan.values[dict(step.reads)["features"]].level]
            outputs = self.levels[self.plan.values[step.out].level]
            fine, coarse = (outputs, inputs) if step.options["geometry"].transposed else (inputs, outputs)
            made = self.plan.levels[self._levels_of(step)[not step.options["geometry"].transposed]].map is not None
            of_map: Any = self.requests[step.map].kernel
            numbers, width, mapper = of_map.index_of(fine.box, coarse.box, ascending=made)
            symbols = {**numbers, "rows": fine.room, "coarse_rows": coarse.room, "threads": 1}
            options: Any = step_options(step, self.steps.target, width)
            maker: Any = load_sparse(dataclasses.replace(options, mapper=mapper)).on(self.index)
            given: dict[str, Buffer] = {
                "coords": inputs.place,
                "coords_count": inputs.count,
                "out_coords": outputs.place,
                "out_coords_count": outputs.count,
            }
            related = ("related", step.map, maker.signature("map"))
            if related not in self._maps:
                self._maps[related] = symbols, self._queue_group(maker.loaded, "map", symbols, given)
            kept = self._queue_group(maker.loaded, "pairs", symbols, {**given, **self._maps[related][1]})
            # A pool has no list of pairs, and reads the number of outputs.
            self._maps[key] = symbols, {**kept, "out_coords_count": outputs.count}
        return self._maps[key]

    def _place_scratch(self) -> None:
        """One piece of memory for all scratch: of a group that is done, nothing is needed."""
        whole = max((sum(map(rounded, sizes.values())) for sizes, _ in self._scratch), default=0)
        piece = self.call.allocate_all({"scratch": whole})["scratch"]
        for sizes, buffers in self._scratch:
            begin = piece.pointer
            for name, nbytes in sizes.items():
                buffers[name] = Place(piece, begin, nbytes)
                begin += rounded(nbytes)
