"""The coordinate sets and maps of one run of a network, built when they are asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from spconv_compiler.arrays import Array
from spconv_compiler.coordinates import Box, check_box, check_coords, with_batch
from spconv_compiler.driver import load_conv
from spconv_compiler.errors import InputError
from spconv_compiler.map_request import MapRequest, map_request
from spconv_compiler.network.plan import NetworkPlan
from spconv_compiler.pytorch.coords import union_rows
from spconv_compiler.sparse_map import MapState, make_map

Pairs = Mapping[str, Any]


class RunMaps:
    """Coordinates of all levels, and maps with their pairs.

    Args:
        requests: of every map between two sets, by its number (`requests_of`).
        given: the coordinates of the levels that are arguments, by level.

    Attributes:
        coords: of every level. counts: how many voxels each has.
        calls: the calls of an earlier run over these maps, or None. first_run: held by the run that makes them.
        peak_bytes: of pairs, the most at one time. built_bytes: of all pairs.

    Raises:
        InputError: coordinates are not accepted.
        LaunchError: out of memory or threads.
    """

    def __init__(self, plan: NetworkPlan, requests: Mapping[int, MapRequest], given: Mapping[int, Any]) -> None:
        self._plan, self._requests = plan, requests
        self.coords: dict[int, Any] = dict(given)
        self._points: dict[int, Array] = {}
        self._boxes: dict[int, Box] = {}
        self._states: dict[int, MapState] = {}
        self._pairs: dict[tuple[Any, ...], tuple[Pairs, Mapping[str, int]]] = {}
        self._built: dict[tuple[Any, ...], Any] = {}
        self.calls: Any = None
        self.first_run = threading.RLock()
        self.peak_bytes = self.built_bytes = self._held = 0
        for number, level in enumerate(plan.levels):
            if level.argument is not None:
                self._points[number] = with_batch(check_coords(given[number], on_gpu=True))
            elif level.union is not None:
                self.coords[number] = union_rows([self.coords[part] for part in level.union])
            elif level.map is not None:
                reads = plan.maps[level.map].reads
                with self._rows_of(reads):
                    self._states[level.map] = state = make_map(requests[level.map], self.coords[reads])
                self.coords[number] = state.out_coords
        self.counts = [int(self.coords[level].shape[0]) for level in range(len(plan.levels))]

    def rows(self, level: int) -> int:
        """How many voxels a level has."""
        return self.counts[level]

    @contextlib.contextmanager
    def _rows_of(self, level: int) -> Iterator[None]:
        """Says in errors which of several coordinate tensors the rows are of that they name."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self._plan.levels[level].name}: {error}") from error

    def check_limits(self, kernel: Any) -> None:
        """Checks that the coordinates of arguments lie where the network's layers say; `kernel` finds their boxes.

        Raises:
            InputError: they do not.
        """
        for number, level in enumerate(self._plan.levels):
            if level.argument is not None and self._points[number].shape[0] > 0:
                with self._rows_of(number):
                    check_box(self._box(number, kernel), self._points[number], level.shape, level.batches)

    def _box(self, level: int, kernel: Any) -> Box:
        if level not in self._boxes:
            self._boxes[level] = kernel.box(self._array(level))
        return self._boxes[level]

    def _array(self, level: int) -> Array:
        if level not in self._points:
            self._points[level] = with_batch(check_coords(self.coords[level], on_gpu=True))
        return self._points[level]

    def pairs(
        self, number: int, inverse: bool, kernel: Any, more: Mapping[str, Any]
    ) -> tuple[Pairs, Mapping[str, int]]:
        """(buffers that `kernel` reads, symbols), built if no kernel with equal pairs has asked before.

        Args:
            more: the fields of SparseOptions beside geometry, for maps between two sets.
        """
        if self._plan.maps[number].submanifold:
            built = self.submanifold(number, kernel)
            return built.buffers, built.symbols
        key = (number, inverse, kernel.signature("pairs"))
        if key not in self._pairs:
            state = self._state(number)
            wide = state.kernel(kernel.options.operation, inverse, dict(more))
            reads = self._plan.maps[number].reads
            with self._rows_of(reads):
                found = state.pairs_for(wide, self.coords[reads], inverse=inverse)
            self._pairs[key] = found.buffers, state.symbols
            self._count(_bytes_of(found.buffers))
        return self._pairs[key]

    def _count(self, nbytes: int) -> None:
        self._held += nbytes
        self.built_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self._held)

    def submanifold(self, number: int, kernel: Any) -> Any:
        """The map of a submanifold convolution as its kernel takes it (KernelMap or DeviceMap), built once."""
        key = (number, kernel.map_signature)
        if key not in self._built:
            level = self._plan.maps[number].reads
            box = self._box(level, kernel)
            wide = kernel
            if kernel.key_width(box) == 64:
                wide = load_conv(dataclasses.replace(kernel.options, key_width=64)).on(self._array(level).device)
            with self._rows_of(level):
                self._built[key] = built = wide.build_map(self._array(level), box)
            self._count(_bytes_of(built.buffers))
        return self._built[key]

    def _state(self, number: int) -> MapState:
        if number not in self._states:
            map_ = self._plan.maps[number]
            given = self.coords[map_.reads], self.coords[map_.writes]
            self._states[number] = make_map(self._requests[number], *given)
        return self._states[number]

    def drop(self, number: int) -> None:
        """Forgets a map and its pairs; the coordinates stay."""
        self._states.pop(number, None)
        for key in [key for key in self._pairs if key[0] == number]:
            self._held -= _bytes_of(self._pairs.pop(key)[0])
        for key in [key for key in self._built if key[0] == number]:
            self._held -= _bytes_of(self._built.pop(key).buffers)


def _bytes_of(pairs: Pairs) -> int:
    return sum(buffer.nbytes for buffer in pairs.values())


def requests_of(plan: NetworkPlan, target: str) -> dict[int, MapRequest]:
    """What every map between two sets is asked for."""
    found = {}
    for number, map_ in enumerate(plan.maps):
        if map_.submanifold:
            continue
        level, geometry = plan.levels[map_.reads], map_.geometry
        found[number] = map_request(
            kernel_size=geometry.kernel_size,
            stride=geometry.stride,
            padding=geometry.padding,
            dilation=geometry.dilation,
            transposed=geometry.transposed,
            output_padding=map_.extra,
            # Given outputs are not clipped: they were made, and clipped, by another map.
            spatial_shape=level.shape if map_.makes_level else None,
            batch_size=level.batches if map_.makes_level else None,
            target=target,
        )
    return found
