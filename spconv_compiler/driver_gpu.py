"""A compiled convolution on a GPU, real or simulated: map, pack, run. The counterpart of driver.ConvKernel."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from spconv_compiler.arrays import ITEM_BYTES, Array, bytes_at, gpu_runtime
from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box, numpy_view
from spconv_compiler.errors import InputError
from spconv_compiler.options import CompileOptions
from spconv_compiler.runtime.calls import HostCall, TensorCall, host_call, read, tensor_call
from spconv_compiler.runtime.device import Buffer, Device
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.schedules.mappers import DENSE_GRID, NARROW_KEYS, Z_DELTA, choose_mapper
from spconv_compiler.targets import GpuTarget

_MAX_ROWS = 2**31 - 1
# The buffer that holds the number of pairs of each tap (passes/convert_compact_to_gpu.py and, of maps between two sets,
# passes/convert_cross_compact_to_gpu.py).
TAP_COUNTS = "tap_count"
# What gemms read of a map. All of it is kept: kernels that share a map need not read the same of it.
MAP_BUFFERS = (
    "in_rows",
    "out_rows",
    "tile_tap",
    "tap_tile",
    "row_order",
    "sorted_table",
    "steps",
    "step_count",
)

OpenCall = Callable[[bool], "AbstractContextManager[HostCall | TensorCall]"]


@dataclasses.dataclass(frozen=True)
class DeviceMap:
    """The pairs of one coordinate set for one geometry, on a device.

    Attributes:
        rows: voxels.
        symbols: the plan symbols it was built with.
        buffers: what the gemm reads.
    """

    rows: int
    symbols: Mapping[str, int] = dataclasses.field(repr=False)
    buffers: Mapping[str, Buffer] = dataclasses.field(repr=False)
    _open: OpenCall = dataclasses.field(repr=False)
    _counts: Buffer | None = dataclasses.field(repr=False)

    @functools.cached_property
    def pairs(self) -> int:
        """(input, output) index pairs over all taps; fetched from the device when first asked for."""
        with self._open(True) as call:
            if self._counts is None:
                # A table by rows comes without counts: every entry that is a row is a pair.
                return int(np.count_nonzero(read(call, self.buffers["sorted_table"], np.int32) >= 0))
            return int(read(call, self._counts, np.int32).sum(dtype=np.int64))


class GpuKernel:
    """Code that is loaded on one GPU, and how its calls reach arrays there.

    Attributes:
        artifact: what was compiled.
    """

    def __init__(
        self, artifact: Artifact, target: GpuTarget, open_device: Callable[[int], Device], index: int | None
    ) -> None:
        self.artifact, self._target = artifact, target
        self._open_device, self._index = open_device, index
        self._device = open_device(index or 0)
        self._plan = GpuPlan(artifact.plan, self._device, artifact.object, keep=(TAP_COUNTS, *MAP_BUFFERS))

    @property
    def device(self) -> Device:
        """What it runs on."""
        return self._device

    @property
    def loaded(self) -> GpuPlan:
        """The plan with its code, for who queues its groups himself (network/captured.py)."""
        return self._plan

    def _call(self, share: bool) -> AbstractContextManager[HostCall | TensorCall]:
        if self._index is None:
            return host_call(self._device)
        device: Any = self._device
        return tensor_call(device, share=share)

    def checksum(self, array: Array) -> int:
        """A checksum of a host array's bytes. Tensors on a device have none: their version counter must do."""
        if array.device is not None:
            return 0
        digest = hashlib.blake2b(bytes_at(array.pointer, array.nbytes).data, digest_size=8)
        return int.from_bytes(digest.digest(), "little")

    def box(self, coords: Array) -> Box:
        """The box around coords int32 [N, 4], N ≥ 1."""
        if coords.device is not None:
            low, high = coords.source.amin(0).tolist(), coords.source.amax(0).tolist()
        else:
            rows = numpy_view(coords)
            # Column by column: four times as fast as one reduction over the long axis.
            low, high = ([int(limit(rows[:, axis])) for axis in range(4)] for limit in (np.min, np.max))
        return Box(tuple(low), tuple(high))


class GpuConvKernel(GpuKernel):
    """A submanifold convolution ready to run on one GPU. See `load_conv`.

    It takes arrays in host memory: they are copied, and every method returns when its work is done. What `on` gives
    for a device takes torch tensors on that device instead: work is queued on torch's current stream, in order with
    the rest of the program, and can be captured into a graph once map and packed weights exist.

    Repeated coordinates are not noticed: the lowest row counts as the neighbour.

    With the option mapper="auto" every map is built by the mapper that suits its coordinates (schedules/mappers.py);
    what builds maps by search is compiled when first needed.
    """

    def __init__(
        self,
        artifact: Artifact,
        options: CompileOptions,
        target: GpuTarget,
        open_device: Callable[[int], Device],
        index: int | None = None,
        family: dict[int | None, GpuConvKernel] | None = None,
    ) -> None:
        super().__init__(artifact, target, open_device, index)
        self.options = options
        self._family = {} if family is None else family
        self._family[index] = self
        launches = artifact.plan.launches
        # Kernel names say all that their code depends on; what is made of them stays in the memory it was made in.
        place = (target.name, index)
        self.map_signature = (*place, *(item.kernel for item in launches if item.group == "pairs"))
        self.pack_signature = (*place, *(item.kernel for item in launches if item.group == "weights"))

    def __reduce__(self) -> tuple[object, ...]:
        # Code on a device belongs to this process: a copy is loaded anew.
        from spconv_compiler.driver import load_conv

        return load_conv, (self.options,)

    def on(self, index: int | None) -> GpuConvKernel:
        """This kernel for tensors on GPU `index`, or for host arrays (None).

        Raises:
            InputError: the target's arrays lie in host memory, or on another vendor's GPU.
            LaunchError: see load_conv.
        """
        if index == self._index:
            return self
        check_place(self._target, index)
        found = self._family.get(index)
        if found is None:
            found = GpuConvKernel(self.artifact, self.options, self._target, self._open_device, index, self._family)
        return found

    def key_width(self, box: Box) -> int:
        """Bits of the keys that the coordinates of a box need."""
        narrow = self._target.narrow_cells if self.options.mapper == DENSE_GRID else NARROW_KEYS
        return box.key_width(self.options.kernel_size, self.options.dilation, narrow)

    def mapper(self, box: Box, rows: int) -> str:
        """The mapper that builds the map of so many coordinates in a box."""
        options = self.options
        if options.mapper != "auto":
            return options.mapper
        cells = box.symbols(options.kernel_size, options.dilation)["cells"]
        return choose_mapper(cells, rows, options.taps, self._target)

    def map_maker(self, box: Box, rows: int) -> GpuConvKernel:
        """The kernel that builds maps of so many coordinates in a box: this one, or the same with the other mapper."""
        searches = self.options.mapper == "auto" and self.mapper(box, rows) == Z_DELTA
        return self._by_search if searches else self

    @functools.cached_property
    def _by_search(self) -> GpuConvKernel:
        """The same convolution with the other mapper; its maps serve this one."""
        options = dataclasses.replace(self.options, mapper=Z_DELTA)
        return GpuConvKernel(compile_options(options), options, self._target, self._open_device, self._index)

    def build_map(self, coords: Array, box: Box) -> DeviceMap:
        """The map of coords int32 [N, 4], N ≥ 1, whose box is `box`.

        Raises:
            InputError: the box needs wider keys than this kernel has, or there are 2^31 rows or more.
            LaunchError, SimulatorError: the device refuses or fails.
        """
        rows = coords.shape[0]
        if rows > _MAX_ROWS:
            raise InputError(f"coords have {rows} rows; accepted: at most {_MAX_ROWS}")
        if self.key_width(box) > self.options.key_width:
            raise InputError(
                f"coords from {box.low} to {box.high} need 64-bit keys; accepted by this kernel: key_width=32"
            )
        maker = self.map_maker(box, rows)
        if maker is not self:
            return maker.build_map(coords, box)
        symbols = {**box.symbols(self.options.kernel_size, self.options.dilation), "rows": rows, "threads": 1}
        self.artifact.plan.check(symbols)
        with self._call(True) as call:
            kept = self._plan.run("pairs", symbols, {"coords": call.place("coords", coords)}, call)
        counts = kept.pop(TAP_COUNTS, None)
        return DeviceMap(rows, symbols, kept, self._call, counts)

    def pack(self, weight: Array) -> dict[str, Buffer]:
        """Packed weights from the native layout."""
        with self._call(True) as call:
            symbols = {"rows": 0, "cells": 0, "threads": 1}
            return self._plan.run("weights", symbols, {"weight": call.place("weight", weight)}, call)

    def run(
        self,
        map_: DeviceMap,
        packed: Mapping[str, Buffer],
        features: Array,
        out: int,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Convolves features [N, C_in] into the memory at address `out`, [N, C_out] of out_dtype.

        `out` and bias lie where features lie: in host memory, or on the device.
        """
        nbytes = map_.rows * self.options.c_out * ITEM_BYTES[self.options.out_dtype]
        with self._call(False) as call:
            given = {**call.use(map_.buffers), **call.use(packed), "features": call.place("features", features)}
            if bias is not None:
                given["bias"] = call.place("bias", bias)
            if residual is not None:
                given["residual"] = call.place("residual", residual)
            given["out"] = call.output("out", out, nbytes)
            self._plan.run("output", map_.symbols, given, call)
            call.deliver(given["out"], out)


def check_place(target: GpuTarget, index: int | None) -> None:
    """Checks that a target's code runs where arrays lie: in host memory (None), or on torch's GPU `index`.

    Raises:
        InputError: it does not.
    """
    if not target.device_tensors:
        raise InputError(f"tensors lie on a device; accepted by target {target.name}: tensors on the cpu")
    if index is not None and gpu_runtime() != target.runtime:
        raise InputError(
            f"tensors lie on a GPU behind {gpu_runtime()}; accepted by target {target.name}: behind {target.runtime}, "
            "or tensors on the cpu"
        )


def load_gpu_conv(options: CompileOptions, target: GpuTarget) -> GpuConvKernel:
    """Compiles (or finds) a convolution and loads it on the device that the target's code runs on.

    Raises:
        LaunchError: there is no such device, or it refuses the code.
    """
    # Before the compiler: without a GPU its work would be for nothing.
    device_of = open_device(target)
    return GpuConvKernel(compile_options(options), options, target, device_of)


def open_device(target: GpuTarget) -> Callable[[int], Device]:
    """What gives the device with a number, for code of a target; device 0 is there.

    Raises:
        LaunchError: there is no such device.
    """
    if target.simulated:
        from spconv_compiler.runtime.sim import sim_device

        return lambda index: sim_device()
    if target.runtime == "cuda":
        from spconv_compiler.runtime.cuda_device import cuda_device
        from spconv_compiler.runtime.cuda_library import load_cuda

        cuda = load_cuda()
        cuda_device(cuda, 0, target.chip)
        return lambda index: cuda_device(cuda, index, target.chip)
    from spconv_compiler.runtime.hip_device import hip_device
    from spconv_compiler.runtime.hip_library import load_hip

    hip = load_hip()
    hip_device(hip, 0, target.chip)
    return lambda index: hip_device(hip, index, target.chip)
