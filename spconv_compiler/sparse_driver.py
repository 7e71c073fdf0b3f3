"""Compiled ops between two coordinate sets, loaded on this host: the set of outputs, the map, the pairs, the op."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spconv_compiler import row_order
from spconv_compiler.arrays import Array, address_of
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box, check_distinct
from spconv_compiler.driver import check_runnable, thread_count
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import key_width, output_symbols, reach_of
from spconv_compiler.runtime.cpu import CpuBuffer, CpuModule
from spconv_compiler.runtime.host_functions import HostFunctions, UsedTaps, used_taps
from spconv_compiler.runtime.plan import CpuPlan
from spconv_compiler.runtime.program import Program, make_program
from spconv_compiler.schedules.chunk_stationary import CHUNK_ROWS
from spconv_compiler.sparse_options import SparseOptions
from spconv_compiler.targets import GpuTarget, get_target

if TYPE_CHECKING:
    from spconv_compiler.sparse_driver_gpu import GpuSparseKernel

MAX_ROWS = 2**31 - 1
# What an output takes while outputs are made: a key of 32 bits twice, its coordinates, its row.
_OUTPUT_BYTES = 28
# Outputs of an input that no convolution exceeds: with more, as many as there may be have to fit into memory.
_USUAL_OUTPUTS = 343
# The word of a status buffer that counts outputs.
_OUTPUTS = 0
# Of the two sets: the symbols that count and order their rows, and the buffers that they are sorted into.
_ROWS = {"fine": "rows", "coarse": "coarse_rows"}
_ORDERS = {"fine": "order", "coarse": "coarse_order"}
_SORTED = {"fine": ("keys", "origin", "status"), "coarse": ("coarse_keys", "coarse_origin", "coarse_status")}
# What makes outputs leaves for what decodes them.
_MADE = ("out_keys", "out_slabs", "out_status")
# A pair holds the output's place within its chunk above the input's row.
_PLACE_SHIFT, _ROW_MASK = 32, (1 << 32) - 1


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What a kernel made of inputs: coordinates int32 [M, 4], ascending, an array or a tensor on a GPU.

    Attributes:
        count: where the number of outputs stays on the device, a word there.
        known: inputs and outputs sorted, for `relate` of a kernel over the map; from a processor only.
        symbols, width: of map_numbers, where they are the numbers that outputs were made with.
    """

    rows: Any
    count: Any = None
    known: Mapping[str, CpuBuffer] | None = dataclasses.field(default=None, repr=False)
    symbols: Mapping[str, int] | None = None
    width: int = 0


@dataclasses.dataclass(frozen=True)
class MapPairs:
    """The pairs of a map in the order of one kernel.

    Attributes:
        buffers: what the op reads.
    """

    buffers: Mapping[str, Any]
    _count: Callable[[], int] = dataclasses.field(repr=False)

    @functools.cached_property
    def count(self) -> int:
        """How many there are over all taps; from a GPU it is fetched when first asked for."""
        return self._count()

    @functools.cached_property
    def used_taps(self) -> UsedTaps | None:
        """On the CPU, the taps that there are pairs of; None: about all."""
        return used_taps(self.buffers["chunk_first"], self.buffers["tap_first"])


class SparseKernel(HostFunctions):
    """One op ready to run. See `load_sparse`."""

    def __init__(self, options: SparseOptions) -> None:
        self.options = options
        self.artifact = compile_options(options)
        module = CpuModule(self.artifact.object)
        super().__init__(module)
        self._plan = CpuPlan(self.artifact.plan, module)
        self._module = module
        self._programs: dict[tuple[str, ...], Program] = {}
        self._signatures: dict[str, tuple[str, ...]] = {}

    def on(self, index: int | None) -> SparseKernel:
        """This kernel for arrays in host memory (None).

        Raises:
            InputError: index is the number of a GPU, on which the arrays lie.
        """
        if index is not None:
            raise InputError(f"tensors lie on a GPU; accepted by target {self.options.target}: tensors on the cpu")
        return self

    def signature(self, group: str) -> tuple[Any, ...]:
        """The kernels of a group. Their names say all that their code depends on: equal names, equal results."""
        found = self._signatures.get(group)
        if found is None:
            launches = self.artifact.plan.launches
            found = self._signatures[group] = tuple(item.kernel for item in launches if item.group == group)
        return found

    def _program(self, groups: tuple[str, ...], also: Sequence[str] = (), passed: Sequence[str] = ()) -> Program:
        """The launches of some groups, put together once."""
        found = self._programs.get(groups)
        if found is None:
            found = self._programs[groups] = make_program(self.artifact.plan, self._module, groups, also, passed)
        return found

    def output_numbers(self, box: Box, out_box: Box) -> tuple[dict[str, int], int]:
        """(the plan's symbols, bits of a key) for outputs in `out_box`; InputError: too many cells."""
        geometry = self.options.geometry
        fine, coarse = (out_box, box) if geometry.transposed else (box, out_box)
        # The box of the map has all outputs in it: its keys are no narrower than theirs.
        symbols = {**output_symbols(out_box), **geometry.symbols(fine, coarse)}
        return symbols, key_width(symbols)

    def map_numbers(self, fine: Box, coarse: Box) -> tuple[dict[str, int], int]:
        """(the plan's symbols, bits of a key) of a map between sets in two boxes; InputError: too many cells."""
        symbols = self.options.geometry.symbols(fine, coarse)
        return symbols, key_width(symbols)

    def outputs(self, coords: Array, symbols: Mapping[str, int], capacity: int | None = None) -> Outputs:
        """The coordinates that "outputs" makes of coords int32 [N, 4], in ascending order.

        Raises:
            InputError: there are 2^31 outputs or more, or too many for this host's memory, or a capacity is given.
            LaunchError: out of memory, or 2^31 candidates or more.
        """
        if capacity is not None:
            raise InputError(f"capacity is {capacity}; accepted by target {self.options.target}: None, for all outputs")
        read, made = ("coarse", "fine") if self.options.geometry.transposed else ("fine", "coarse")
        rows = coords.shape[0]
        values = {**symbols, _ROWS[read]: rows, "threads": thread_count()}
        self._check_room(rows, symbols)
        self.artifact.plan.check(values)
        values["coords"], values[_ORDERS[read]] = coords.pointer, row_order.known_address(rows)
        known = self._program((read, "coords"), _SORTED[read], _MADE)(values)
        row_order.note(known[_SORTED[read][1]])
        outputs = [known.pop(name) for name in _MADE]
        count = outputs[-1].word(_OUTPUTS)
        if count > MAX_ROWS:
            raise InputError(f"the coords have {count} outputs; accepted: at most {MAX_ROWS}")
        found = np.empty((count, 4), np.int32)
        values[_ROWS[made]], values["out"] = count, address_of(found)
        for name, buffer in zip(_MADE, outputs, strict=True):
            values[name] = buffer.pointer
        known |= self._program(("decode",), _SORTED[made])(values)
        box = {name: value for name, value in symbols.items() if not name.startswith("out_")}
        return Outputs(found, known=known, symbols=box, width=self.options.key_width)

    def _check_room(self, rows: int, symbols: Mapping[str, int]) -> None:
        """Refuses a kernel of very many taps whose outputs may take more than half of the memory."""
        each = reach_of(self.options.geometry).most
        cells = symbols["batches"] * math.prod(symbols[f"out_extent_{axis}"] for axis in "zyx")
        most, room = min(rows * each, cells), host_bytes() // 2 // _OUTPUT_BYTES
        if each > _USUAL_OUTPUTS and most > room:
            raise InputError(
                f"kernel {self.options.geometry.kernel_size} may make {most} outputs of {rows} coords, which take "
                f"{most * _OUTPUT_BYTES} bytes; accepted: at most {room} outputs, half of this host's memory (a "
                "smaller kernel or spatial_shape, or a greater stride)"
            )

    def _sort(self, which: str, values: Mapping[str, int], *, of_inputs: bool) -> dict[str, CpuBuffer]:
        """Sorts the "fine" or the "coarse" set: its keys, their rows, and how it went."""
        order = row_order.known_address(values[_ROWS[which]]) if of_inputs else 0
        found = self._plan.run(which, {**values, _ORDERS[which]: order}, also=_SORTED[which])
        if of_inputs:
            row_order.note(found[_SORTED[which][1]])
        return found

    def relate(
        self,
        coords: Array,
        out_coords: Array,
        symbols: Mapping[str, int],
        known: Mapping[str, CpuBuffer] | None = None,
        names: tuple[str, str] = ("coords", "out_coords"),
    ) -> dict[str, CpuBuffer]:
        """Sorts both sets, for `pairs` to look up which voxels meet; coords of inputs and of outputs are int32 [N, 4].

        Args:
            symbols: the box of map_numbers, rows (of the fine set) and coarse_rows.
            known: both sets sorted, as `outputs` left them for this geometry or for its inverse.
            names: what messages call coords and out_coords: of an inverse, the arguments that the map was built of.

        Raises:
            InputError: a set has two equal rows; the message counts them and shows the first pair.
            LaunchError: out of memory or threads, or more rows than an entry can name.
        """
        self.artifact.plan.check(symbols)
        transposed = self.options.geometry.transposed
        if known is None:
            addresses = {"coords": coords.pointer, "out_coords": out_coords.pointer}
            values = {**symbols, **addresses, "threads": thread_count()}
            sets = [
                self._sort(which, values, of_inputs=of_inputs)
                for which, of_inputs in (("fine", not transposed), ("coarse", transposed))
            ]
            known = sets[0] | sets[1]
        first, second = ("coarse_status", "status") if transposed else ("status", "coarse_status")
        for status, given, what in ((first, coords, names[0]), (second, out_coords, names[1])):
            check_distinct(known[status].word, given, what)
        return dict(known)

    def sorted_sets(self, related: Mapping[str, CpuBuffer]) -> dict[str, CpuBuffer]:
        """Of what `relate` returned, what it can be given as `known`."""
        return {name: related[name] for names in _SORTED.values() for name in names}

    def pairs(self, related: Mapping[str, CpuBuffer], symbols: Mapping[str, int]) -> MapPairs:
        """The pairs in the order of this kernel, from what `relate` returned.

        Raises:
            LaunchError: out of memory or threads.
        """
        # The table between the two takes more memory than all the rest, and is not kept.
        values = {**symbols, "threads": thread_count()}
        for name, buffer in related.items():
            values[name] = buffer.pointer
        kept = self._program(("map", "pairs"))(values)
        # Each output's row is in a buffer of the map.
        reads = {**related, **kept}
        origin = "origin" if self.options.geometry.transposed else "coarse_origin"
        result = {name: reads[name] for name in ("pairs", "chunk_first", "tap_first", origin)}
        starts = result["tap_first"].array().reshape(len(result["chunk_first"].array()), -1)
        return MapPairs(result, lambda: int(starts[:, -1].sum(dtype=np.int64)))

    def total(self, out_count: Any) -> int:
        """How many outputs there are; a processor has no map with a capacity."""
        raise InputError(f"the count is {out_count}; accepted by target {self.options.target}: none")

    def triples(self, pairs: MapPairs) -> tuple[npt.NDArray[np.int32], ...]:
        """(tap, input row, output row) of every pair, in any order."""
        first = pairs.buffers["chunk_first"].array()
        starts = pairs.buffers["tap_first"].array().reshape(len(first), -1)
        counts = np.diff(starts, axis=1)
        chunk, tap = np.divmod(np.repeat(np.arange(counts.size), counts.ravel()), counts.shape[1])
        spans = [np.arange(begin, begin + size) for begin, size in zip(first, starts[:, -1], strict=True)]
        words = pairs.buffers["pairs"].array()[np.concatenate(spans)].astype(np.int64)
        origin = pairs.buffers["origin" if self.options.geometry.transposed else "coarse_origin"].array()
        out_rows = origin[chunk * CHUNK_ROWS + (words >> _PLACE_SHIFT)].astype(np.int32)
        return tap.astype(np.int32), (words & _ROW_MASK).astype(np.int32), out_rows

    def calls(self, group: str) -> list[tuple[int, tuple[str, ...]]]:
        """(address of the function, names of its arguments) of each launch of a group."""
        return self._plan.calls(group)

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
        residual: Array | None = None,
    ) -> None:
        """Runs the op on features [N, C_in] into the memory at address `out`, [M, C_out] of out_dtype."""
        values = {**symbols, "threads": thread_count(), "features": features.pointer, "out": out}
        if bias is not None:
            values["bias"] = bias.pointer
        if residual is not None:
            values["residual"] = residual.pointer
        self._plan.run("output", values, {**pairs, **(packed or {})})


def host_bytes() -> int:
    """Bytes of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@functools.lru_cache(maxsize=256)
def load_sparse(options: SparseOptions) -> SparseKernel | GpuSparseKernel:
    """Compiles (or finds) an op and loads it: on this host, on a GPU, or on the simulator.

    Raises:
        LaunchError: the target is not one that this host can run.
    """
    target = get_target(options.target)
    if isinstance(target, GpuTarget):
        from spconv_compiler.driver_gpu import open_device
        from spconv_compiler.sparse_driver_gpu import GpuSparseKernel

        return GpuSparseKernel(options, target, open_device(target))
    check_runnable(target)
    return SparseKernel(options)
