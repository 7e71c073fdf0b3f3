"""Compiled ops between two coordinate sets, loaded on this host: the set of outputs, the map, the pairs, the op."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import ITEM_BYTES, Array
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box, numpy_view
from spconv_compiler.driver import check_runnable, thread_count
from spconv_compiler.errors import InputError
from spconv_compiler.runtime.cpu import CpuBuffer, CpuModule
from spconv_compiler.runtime.plan import CpuPlan
from spconv_compiler.sparse_options import SparseOptions
from spconv_compiler.targets import get_target

MAX_ROWS = 2**31 - 1
# Words of a status buffer.
_DUPLICATES, _FIRST_ROW, _SECOND_ROW = 0, 1, 2
_OUTPUTS = 0


class SparseKernel:
    """One op ready to run. See `load_sparse`."""

    def __init__(self, options: SparseOptions) -> None:
        self.options = options
        self.artifact = compile_options(options)
        module = CpuModule(self.artifact.object)
        self._plan = CpuPlan(self.artifact.plan, module)
        self._bounds = module.function("coords_bounds", ("buffer", "symbol", "buffer"), result=False)
        self._fingerprint = module.function("fingerprint", ("buffer", "symbol"))

    def signature(self, group: str) -> tuple[str, ...]:
        """The kernels of a group. Their names say all that their code depends on: equal names, equal results."""
        return tuple(launch.kernel for launch in self.artifact.plan.launches if launch.group == group)

    def checksum(self, array: Array) -> int:
        """A checksum of an array's bytes."""
        return int(self._fingerprint(array.pointer, ITEM_BYTES[array.dtype] * math.prod(array.shape)))

    def box(self, coords: Array) -> Box:
        """The box around coords int32 [N, 4], N ≥ 1."""
        found = (ctypes.c_int32 * 8)()
        self._bounds(coords.pointer, coords.shape[0], ctypes.addressof(found))
        return Box(tuple(found[:4]), tuple(found[4:]))  # type: ignore[arg-type]

    def outputs(self, coords: Array, symbols: Mapping[str, int]) -> npt.NDArray[np.int32]:
        """The coordinates int32 [M, 4] that "outputs" makes of coords int32 [N, 4], in ascending order.

        Raises:
            InputError: there are 2^31 outputs or more.
            LaunchError: out of memory, or 2^31 candidates or more.
        """
        transposed = self.options.geometry.transposed
        inputs, outputs = ("coarse_rows", "rows") if transposed else ("rows", "coarse_rows")
        values = {**symbols, inputs: coords.shape[0], "threads": thread_count()}
        self.artifact.plan.check(values)
        kept = self._plan.run("coords", {**values, "coords": coords.pointer})
        count = int(kept.pop("out_status").array()[_OUTPUTS])
        if count > MAX_ROWS:
            raise InputError(f"the coords have {count} outputs; accepted: at most {MAX_ROWS}")
        found = np.empty((count, 4), np.int32)
        self._plan.run("map", {**values, outputs: count, "out": found.ctypes.data}, kept)
        return found

    def relate(self, coords: Array, out_coords: Array, symbols: Mapping[str, int]) -> dict[str, CpuBuffer]:
        """Sorts both sets and looks up which voxels meet; coords of inputs and of outputs are int32 [N, 4].

        Args:
            symbols: the box of ConvGeometry.symbols, rows (of the fine set) and coarse_rows.

        Raises:
            InputError: a set has two equal rows; the message counts them and shows the first pair.
            LaunchError: out of memory or threads, or more rows than an entry can name.
        """
        values = {**symbols, "threads": thread_count()}
        self.artifact.plan.check(values)
        addresses = {"coords": coords.pointer, "out_coords": out_coords.pointer}
        kept = self._plan.run("map", {**values, **addresses})
        fine, coarse = (out_coords, coords) if self.options.geometry.transposed else (coords, out_coords)
        names = ("out_coords", "coords") if self.options.geometry.transposed else ("coords", "out_coords")
        for status, given, what in (("status", fine, names[0]), ("coarse_status", coarse, names[1])):
            check_distinct(kept[status].array(), given, what)
        return kept

    def pairs(
        self, related: Mapping[str, CpuBuffer], symbols: Mapping[str, int]
    ) -> tuple[int, dict[str, CpuBuffer]]:
        """(how many pairs there are, the pairs in the order of this kernel), from what `relate` returned.

        Raises:
            LaunchError: out of memory or threads.
        """
        kept = self._plan.run("pairs", {**symbols, "threads": thread_count()}, related)
        # Each output's row is in a buffer of the map.
        reads = {**related, **kept}
        origin = "origin" if self.options.geometry.transposed else "coarse_origin"
        result = {name: reads[name] for name in ("pairs", "chunk_first", "tap_first", origin)}
        starts = result["tap_first"].array().reshape(len(result["chunk_first"].array()), -1)
        return int(starts[:, -1].sum(dtype=np.int64)), result

    def pack(self, weight: Array) -> dict[str, CpuBuffer]:
        """Packed weights from the native layout."""
        return self._plan.run("weights", {"threads": thread_count(), "weight": weight.pointer})

    def run(
        self,
        pairs: Mapping[str, CpuBuffer],
        symbols: Mapping[str, int],
        features: Array,
        out: int,
        packed: Mapping[str, CpuBuffer] | None = None,
        bias: Array | None = None,
    ) -> None:
        """Runs the op on features [N, C_in] into the memory at address `out`, [M, C_out] of out_dtype."""
        values = {**symbols, "threads": thread_count(), "features": features.pointer, "out": out}
        if bias is not None:
            values["bias"] = bias.pointer
        self._plan.run("output", values, {**pairs, **(packed or {})})


def check_distinct(status: npt.NDArray[Any], coords: Array, what: str) -> None:
    """Raises InputError when the sort of `coords` found equal rows."""
    if status[_DUPLICATES]:
        first, second = int(status[_FIRST_ROW]), int(status[_SECOND_ROW])
        raise InputError(
            f"{int(status[_DUPLICATES])} {what} repeat an earlier row, the first: rows {first} and {second} are both "
            f"{numpy_view(coords)[first].tolist()} (batch, z, y, x); accepted: every voxel once"
        )


@functools.lru_cache(maxsize=256)
def load_sparse(options: SparseOptions) -> SparseKernel:
    """Compiles (or finds) an op and loads it on this host.

    Raises:
        LaunchError: the target is not one that this host can run.
    """
    check_runnable(get_target(options.target))
    return SparseKernel(options)
