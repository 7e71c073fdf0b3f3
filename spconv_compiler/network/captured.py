"""A network's work on a GPU with room for so many voxels, queued once and captured into graphs.

Everything has its place before anything is queued. Every level has room for a fixed number of rows, and the number of
those that are there is a pair of words on the device (passes/gpu/output_cells.py): what is left over lies in batch −1,
where no voxel meets another. So nothing depends on what the host knows of a frame: maps, convolutions and pools of the
whole plan are one graph, which is launched on other coordinates and features in the same place. Between two graphs
lies what torch does: ops on rows that no kernel has taken over. A convolution that comes last is launched behind them,
out of the caller's features and into the caller's result, so that neither is copied.

Values share memory by their lives, all work being in order; scratch is shared by everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spconv_compiler.arrays import Array
from spconv_compiler.coordinates import Box
from spconv_compiler.driver import load_conv
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.level_maps import Layout, lay_out, load_levels
from spconv_compiler.map_request import MapRequest
from spconv_compiler.network.kernels import step_options
from spconv_compiler.network.level_plan import boxes_of
from spconv_compiler.network.memory import last_uses
from spconv_compiler.network.places import (
    COLUMNS,
    COORD_BYTES,
    COUNT_WORDS,
    DTYPES,
    LIMIT_WORDS,
    NOWHERE,
    Launches,
    Level,
    OnRows,
    Place,
    Queue,
    direct_reads,
    loose_step,
    makes_levels,
    rounded,
    take,
)
from spconv_compiler.network.plan import NetworkPlan, Step
from spconv_compiler.runtime.calls import TensorCall
from spconv_compiler.runtime.device import Buffer, Graph
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.sparse_driver import load_sparse
from spconv_compiler.sparse_options import ON_ROWS


class CapturedNetwork:
    """See the module. Built in memory of torch's current stream; the caller lets one call in at a time.

    Args:
        steps: gives the kernels of steps, their packed weights and vectors (steps.StepNetwork).
        requests: of every map between two sets. room: rows of every level.
        call: of the stream that it is built on. like: a tensor on that device.
        together: whether all levels and maps are built together where they can be.
        hand_out: whether the last step, if it is a convolution, writes to a new tensor in every call.

    Attributes:
        levels: by number. values: the place of every value. tensors: the tensors of results.
        status: int32, COUNT_WORDS a level, then for every level that is given the least and the largest coordinates,
            which `limits` are.
        refused: whether a capture has failed.

    Raises:
        InputError: a level's box is larger than kernels accept. LaunchError: out of memory.
    """

    def __init__(
        self,
        plan: NetworkPlan,
        steps: Any,
        requests: Mapping[int, MapRequest],
        room: Sequence[int],
        call: TensorCall,
        like: torch.Tensor,
        *,
        together: bool = True,
        hand_out: bool = False,
    ) -> None:
        self._plan, self._steps, self._requests, self._like = plan, steps, requests, like
        self.device: Any = call.device
        self.index = self.device.index
        self.room = tuple(room)
        self.refused = False
        self._call = call
        self._scratch: list[tuple[Mapping[str, int], dict[str, Buffer]]] = []
        self._work: list[Launches | OnRows] = []
        self._maps: dict[tuple[Any, ...], tuple[Mapping[str, int], dict[str, Buffer]]] = {}
        self._together: Layout | None = None
        self._level_plan: Any = self._steps.level_plan if together and makes_levels(plan) else None
        self._graphs: list[Graph | OnRows] = []
        self._loose = loose_step(plan) if hand_out else None
        self._direct = set() if self._loose is None else direct_reads(plan, self._loose)
        # Rows of given levels that the last call has left in their places.
        self._placed: dict[int, int] = {}
        self._counted = any(not map_.submanifold for map_ in plan.maps)
        given, first = sum(level.argument is not None for level in plan.levels), COUNT_WORDS * len(plan.levels)
        self.status = like.new_empty((first + LIMIT_WORDS * given,), dtype=torch.int32)
        halves = [self.status.narrow(0, first + COLUMNS * half, COLUMNS) for half in range(2 * given)]
        self.limits = list(zip(halves[::2], halves[1::2], strict=True))
        self.levels = self._make_levels()
        self.tensors: dict[int, torch.Tensor] = {}
        self.values = self._place_values()
        for number, step in enumerate(plan.steps):
            self._add(number, step)
        self._place_scratch()

    def tensor(self, kind: str, number: int) -> torch.Tensor:
        """Where the work leaves a result, with all rows that there is room for."""
        return self.levels[number].coords if kind == "level" else self.tensors[number]

    @property
    def graphs(self) -> int:
        """Graphs that a call launches; 0 before the capture."""
        return sum(not isinstance(item, OnRows) for item in self._graphs)

    # Building.

    def _make_levels(self) -> dict[int, Level]:
        boxes = boxes_of(self._plan, self._requests)
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
        rows = self._like.new_empty((layout.symbols["coarse_rows"], 4), dtype=torch.int32)
        words = torch.from_numpy(layout.places).to(f"cuda:{self.index}")
        made = {0: self._level(0, layout.boxes[0])}
        for number in range(1, len(layout.rooms)):
            first = layout.rows_of_level(number).first // COORD_BYTES
            made[number] = self._level(number, layout.boxes[number], rows.narrow(0, first, self.room[number]))
        given = {
            "coords": made[0].place,
            "places": Place(words, words.data_ptr(), layout.places.nbytes),
            "level_rows": Place(rows, rows.data_ptr(), rows.nbytes),
            "level_counts": Place(self.status, self.status.data_ptr(), 4 * COUNT_WORDS * len(self._plan.levels)),
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
        return self._plan.values[dict(step.reads)["features"]].level, self._plan.values[step.out].level

    def _levels_one_by_one(self, boxes: Sequence[Box]) -> dict[int, Level]:
        made: dict[int, Level] = {}
        for number, level in enumerate(self._plan.levels):
            if level.argument is not None:
                made[number] = self._level(number, boxes[number])
        for number, map_ in enumerate(self._plan.maps):
            if map_.makes_level:
                request, reads = self._requests[number], made[map_.reads]
                made[map_.writes] = self._level(map_.writes, boxes[map_.writes])
                self._add_outputs(request, reads, made[map_.writes])
        return made

    def _level(self, number: int, box: Box, coords: torch.Tensor | None = None) -> Level:
        room, words = self.room[number], 4 * COUNT_WORDS
        coords = self._like.new_empty((room, 4), dtype=torch.int32) if coords is None else coords
        return Level(coords, Place(self.status, self.status.data_ptr() + words * number, words), box, room)

    def _add_outputs(self, request: MapRequest, reads: Level, writes: Level) -> None:
        kernel: Any = request.kernel.on(self.index)
        symbols, width = kernel.output_numbers(reads.box, writes.box)
        kernel = load_sparse(dataclasses.replace(kernel.options, key_width=width)).on(self.index)
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
        kept = self._call.allocate_all(sizes)
        buffers = {**given, **kept}
        self._scratch.append((scratch, buffers))
        self._work.append(Launches(plan, group, symbols, buffers))
        return dict(kept)

    def _place_values(self) -> dict[int, Place]:
        """Results, arguments and what torch reads or writes have tensors of their own; the others share memory."""
        plan = self._plan
        own = {number for kind, number in (*plan.results, *plan.arguments) if kind == "value"}
        for step in plan.steps:
            if step.operation in ON_ROWS:
                own |= {step.out, *(number for _, number in step.reads)}
        places: dict[int, Place] = {}
        loose = set() if self._loose is None else {plan.steps[self._loose].out}
        for number in own - loose - self._direct:
            value = plan.values[number]
            shape = (self.room[value.level], value.channels)
            self.tensors[number] = made = self._like.new_empty(shape, dtype=DTYPES[value.dtype])
            places[number] = Place(made, made.data_ptr(), shape[0] * value.row_bytes)
        # These have a place in every call anew.
        places |= dict.fromkeys(loose | self._direct, Place(None, 0, 0))
        last, free = last_uses(plan), list[Buffer]()
        for place, step in enumerate(plan.steps):
            if step.out not in places:
                value = plan.values[step.out]
                nbytes = self.room[value.level] * value.row_bytes
                found = take(free, nbytes) or self._call.allocate_all({step.name: nbytes})[step.name]
                places[step.out] = Place(found, found.pointer, found.nbytes)
            done = {number for _, number in step.reads if last[number] == place} | ({step.out} - last.keys())
            free += [places[number].owner for number in done if number not in own]
        return places

    def _add(self, number: int, step: Step) -> None:
        if step.operation in ON_ROWS:
            run = self._steps.on_rows(number, {name: self.tensors[value] for name, value in step.reads})
            self._work.append(OnRows(run, self.values[step.out]))
            return
        kernel, packed, bias = self._steps.constants(number, self.index)
        assert step.map is not None
        submanifold = self._plan.maps[step.map].submanifold
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
            level = self.levels[self._plan.values[step.out].level]
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
            inputs = self.levels[self._plan.values[dict(step.reads)["features"]].level]
            outputs = self.levels[self._plan.values[step.out].level]
            fine, coarse = (outputs, inputs) if step.options["geometry"].transposed else (inputs, outputs)
            numbers, width = self._requests[step.map].kernel.map_numbers(fine.box, coarse.box)
            symbols = {**numbers, "rows": fine.room, "coarse_rows": coarse.room, "threads": 1}
            maker: Any = load_sparse(step_options(step, self._steps.target, width)).on(self.index)
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
        piece = self._call.allocate_all({"scratch": whole})["scratch"]
        for sizes, buffers in self._scratch:
            begin = piece.pointer
            for name, nbytes in sizes.items():
                buffers[name] = Place(piece, begin, nbytes)
                begin += rounded(nbytes)

    # Running.

    def place(self, coords: Mapping[int, Array], values: Mapping[int, Array], stream: int) -> None:
        """Queues copies of a frame to where the work reads it: coordinates int32 [N, 4] by level, values by number."""
        for number, array in coords.items():
            level, rows = self.levels[number], array.shape[0]
            begin, before = level.place.pointer, self._placed.pop(number, None)
            self.device.copy(begin, array.pointer, array.nbytes, stream)
            stale = (level.room if before is None else before) - rows
            if stale > 0:
                rest = Place(level.coords, begin + array.nbytes, COORD_BYTES * stale)
                self.device.fill(rest, NOWHERE & 255, stream)
            if rows != before or self._counted:
                self.device.fill_words(level.count.pointer, rows, COUNT_WORDS, stream)
            self._placed[number] = rows
        for number, array in values.items():
            if number in self._direct:
                continue
            self.device.copy(self.values[number].pointer, array.pointer, array.nbytes, stream)

    def run(self, values: Mapping[int, Array], stream: int) -> dict[int, torch.Tensor]:
        """Queues all work: the graphs, or before `capture` every launch.

        Returns:
            By number, the results that went to new tensors, with all rows that there is room for.
        """
        work = self._work if self._loose is None else self._work[:-1]
        for item in self._graphs or work:
            if isinstance(item, OnRows):
                self._run_torch(item, stream)
            elif isinstance(item, Launches):
                self._launch(item, item.buffers, stream)
            else:
                item.launch(stream)
        return {} if self._loose is None else self._run_loose(self._loose, values, stream)

    def _run_loose(self, place: int, values: Mapping[int, Array], stream: int) -> dict[int, torch.Tensor]:
        step, work = self._plan.steps[place], self._work[-1]
        assert isinstance(work, Launches)
        out = self._plan.values[step.out]
        made = self._like.new_empty((self.room[out.level], out.channels), dtype=DTYPES[out.dtype])
        buffers = {**work.buffers, "out": Place(made, made.data_ptr(), made.nbytes)}
        for name, number in step.reads:
            if number in self._direct:
                given = values[number]
                buffers[name] = Place(given.source, given.pointer, given.nbytes)
        self._launch(work, buffers, stream)
        return {step.out: made}

    def _launch(self, work: Launches, buffers: Mapping[str, Buffer], stream: int) -> None:
        work.plan.launch(work.group, work.symbols, buffers, Queue(self.device, stream))

    def _run_torch(self, item: OnRows, stream: int) -> None:
        made = item.run()
        self.device.copy(item.out.pointer, made.data_ptr(), item.out.nbytes, stream)

    def capture(self) -> None:
        """Captures all work. It has run once: nothing is loaded in a capture."""
        found: list[Graph | OnRows] = []
        waiting: list[Launches] = []

        def queue(stream: int) -> None:
            for work in waiting:
                self._launch(work, work.buffers, stream)

        for work in [*(self._work if self._loose is None else self._work[:-1]), None]:
            if isinstance(work, Launches):
                waiting.append(work)
                continue
            if waiting:
                found.append(self.device.capture(queue))
                waiting.clear()
            if work is not None:
                found.append(work)
        self._graphs = found
