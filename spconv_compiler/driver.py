"""A compiled convolution loaded on this host: map, pack, run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spconv_compiler import env, row_order
from spconv_compiler.arrays import ITEM_BYTES, Array, torch_module
from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box, check_distinct
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.options import CompileOptions
from spconv_compiler.runtime.cpu import CpuBuffer, CpuModule
from spconv_compiler.runtime.host_functions import HostFunctions, UsedTaps, used_taps
from spconv_compiler.runtime.plan import CpuPlan, PreparedRun
from spconv_compiler.runtime.program import Program, make_program
from spconv_compiler.targets import CpuTarget, GpuTarget, Target, get_target

if TYPE_CHECKING:
    from spconv_compiler.driver_gpu import GpuConvKernel

_MAX_ROWS = 2**31 - 1
# The word of a status buffer that counts pairs.
_PAIRS = 3
# As passes/cpu/parallel.py: a kernel makes no more, and every thread has scratch of its own.
MAX_THREADS = 256


@dataclasses.dataclass(frozen=True)
class KernelMap:
    """The pairs of one coordinate set for one geometry.

    Attributes:
        rows: voxels.
        pairs: (input, output) index pairs over all taps.
        symbols: the plan symbols it was built with.
        buffers: what the gemm reads.
    """

    rows: int
    pairs: int
    symbols: Mapping[str, int] = dataclasses.field(repr=False)
    buffers: Mapping[str, CpuBuffer] = dataclasses.field(repr=False)
    _prepared: dict[ConvKernel, PreparedRun] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[object, ...]:
        # Prepared runs hold addresses: a copy prepares its own.
        return KernelMap, (self.rows, self.pairs, dict(self.symbols), dict(self.buffers))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the map holds; of the list of pairs, whose room is a guess, what is filled."""
        others = sum(buffer.nbytes for name, buffer in self.buffers.items() if name != "pairs")
        return others + self.pairs * ITEM_BYTES["i64"]

    @functools.cached_property
    def used_taps(self) -> UsedTaps | None:
        """The taps that there are pairs of; None: about all."""
        return used_taps(self.buffers["chunk_first"], self.buffers["tap_first"])


class ConvKernel(HostFunctions):
    """A submanifold convolution ready to run. See `load_conv`."""

    def __init__(self, artifact: Artifact, options: CompileOptions) -> None:
        self.artifact, self.options = artifact, options
        module = CpuModule(artifact.object)
        super().__init__(module)
        self._plan = CpuPlan(artifact.plan, module)
        self._module = module
        # Kernel names say all that their code depends on: equal names, interchangeable pairs.
        launches = artifact.plan.launches
        self.map_signature = tuple(item.kernel for item in launches if item.group == "pairs")
        self.pack_signature = tuple(item.kernel for item in launches if item.group == "weights")

    def __reduce__(self) -> tuple[object, ...]:
        # Machine code and its addresses belong to this process: a copy is loaded anew.
        return load_conv, (self.options,)

    def on(self, index: int | None) -> ConvKernel:
        """This kernel for arrays in host memory (None).

        Raises:
            InputError: index is the number of a GPU, on which the arrays lie.
        """
        if index is not None:
            raise InputError(f"tensors lie on a GPU; accepted by target {self.options.target}: tensors on the cpu")
        return self

    @functools.cached_property
    def _make_pairs(self) -> Program:
        return make_program(self.artifact.plan, self._module, ("pairs",))

    def key_width(self, box: Box) -> int:
        """Bits of the keys that the coordinates of a box need."""
        return box.key_width(self.options.kernel_size, self.options.dilation)

    def build_map(self, coords: Array, box: Box) -> KernelMap:
        """The map of coords int32 [N, 4], N ≥ 1, whose box is `box`.

        Raises:
            InputError: two rows are equal (the message counts them and shows the first pair), the box needs wider
                keys than this kernel has, or there are 2^31 rows or more.
            LaunchError: out of memory or threads.
        """
        rows = coords.shape[0]
        if rows > _MAX_ROWS:
            raise InputError(f"coords have {rows} rows; accepted: at most {_MAX_ROWS}")
        if self.key_width(box) > self.options.key_width:
            raise InputError(
                f"coords from {box.low} to {box.high} need 64-bit keys; accepted by this kernel: key_width=32"
            )
        symbols = box.symbols(self.options.kernel_size, self.options.dilation)
        symbols |= {"rows": rows, "threads": thread_count(), "order": row_order.known_address(rows)}
        self.artifact.plan.check(symbols)
        kept = self._make_pairs({**symbols, "coords": coords.pointer})
        status = kept.pop("status")
        check_distinct(status.word, coords)
        row_order.note(kept["origin"])
        return KernelMap(rows, status.word(_PAIRS), {**symbols, "order": 0}, kept)

    def calls(self, group: str) -> list[tuple[int, tuple[str, ...]]]:
        """(address of the function, names of its arguments) of each launch of a group."""
        return self._plan.calls(group)

    def pack(self, weight: Array) -> dict[str, CpuBuffer]:
        """Packed weights from the native layout."""
        values = {"rows": 0, "cells": 0, "threads": thread_count(), "weight": weight.pointer}
        return self._plan.run("weights", values)

    def run(
        self,
        map_: KernelMap,
        packed: Mapping[str, CpuBuffer],
        features: Array,
        out: int,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Convolves features [N, C_in] into the memory at address `out`, [N, C_out] of out_dtype."""
        prepared = map_._prepared.get(self) or self._prepare(map_, packed, bias is not None, residual is not None)
        values = prepared.values()
        # No worker is left without a chunk: each has scratch, and small calls feel it.
        values["threads"] = thread_count(map_.buffers["chunk_first"].count)
        values["features"], values["out"] = features.pointer, out
        if bias is not None:
            values["bias"] = bias.pointer
        if residual is not None:
            values["residual"] = residual.pointer
        for name, buffer in packed.items():
            values[name] = buffer.pointer
        prepared.run(values)

    def _prepare(self, map_: KernelMap, packed: Iterable[str], bias: bool, residual: bool) -> PreparedRun:
        given = ["features", "out", *packed, *["bias"] * bias, *["residual"] * residual]
        # Of two threads the first one's is kept.
        return map_._prepared.setdefault(self, self._plan.prepare("output", map_.symbols, map_.buffers, given))


def thread_count(most: int = MAX_THREADS) -> int:
    """SPCONV_NUM_THREADS, but no more than torch has been told to use, and no more than there is work for."""
    if most == 1 and not env.NUM_THREADS.is_set():
        return 1
    torch = torch_module()
    wanted = min(env.NUM_THREADS.get(), most, MAX_THREADS)
    return wanted if torch is None else min(wanted, int(torch.get_num_threads()))


def load_conv(options: CompileOptions) -> ConvKernel | GpuConvKernel:
    """Compiles (or finds) a convolution and loads it: on this host, on a GPU, or on the simulator.

    Raises:
        LaunchError: the target is not one that this host can run; without a GPU, code can still be compiled
            (compile_conv) and run on the simulator.
    """
    target = get_target(options.target)
    if isinstance(target, GpuTarget):
        from spconv_compiler.driver_gpu import load_gpu_conv

        return load_gpu_conv(options, target)
    check_runnable(target)
    return ConvKernel(compile_options(options), options)


def check_runnable(target: Target) -> None:
    """Checks that code for a target runs on this host's processor.

    Raises:
        LaunchError: it does not.
    """
    # A target that is no GPU is a processor.
    assert isinstance(target, CpuTarget)
    from spconv_compiler.tile_grant import tile_refusal
    from spconv_compiler.toolchain import host_cpu_features

    missing = sorted(set(target.requires) - host_cpu_features())
    if missing:
        raise LaunchError(f"this processor cannot run {target.name} code: it lacks {', '.join(missing)}")
    refusal = None if target.tile_unit is None else tile_refusal()
    if refusal is not None:
        raise LaunchError(f"this process cannot run {target.name} code: its tile registers are refused: {refusal}")
