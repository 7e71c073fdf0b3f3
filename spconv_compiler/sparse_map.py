"""`build_map`: two coordinate sets and which of their voxels meet, as a handle that convolutions share."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import ITEM_BYTES, Array, lasting_tensors
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry, Triple
from spconv_compiler.map_request import MapRequest, map_request, sparse_kernel, target_for
from spconv_compiler.map_sets import Kernel, check_alike, checked_set, like_coords, made_outputs, set_box
from spconv_compiler.sparse_driver import MapPairs, Outputs, SparseKernel

_NOWHERE = Box((0, 0, 0, 0), (0, 0, 0, 0))


class MapState:
    """All of a map but the inputs' coordinates, which a cache must not keep alive.

    Attributes:
        request: what was asked for.
        out_set: the outputs as int32 [M, 4].
        symbols: the numbers that plans over this map take.
        device: number of the GPU that all tensors lie on, or None. out_count: where the number of outputs stays, if
            there is room for more of them.
    """

    def __init__(
        self,
        request: MapRequest,
        inputs: Array,
        out_coords: Any,
        boxes: tuple[Box | None, Box | None],
        made: Outputs | None = None,
        checksum: int | None = None,
    ) -> None:
        self.request, self._out_coords = request, out_coords
        self.out_set, self.in_rows = checked_set(out_coords, "out_coords"), inputs.shape[0]
        self._checksum = request.kernel.on(inputs.device).checksum
        self._known = self._checksum(inputs) if checksum is None else checksum
        # Of the outputs, once anybody else has them; one entry at most.
        self._handed_out: dict[str, int] = {}
        if made is None:
            self._hand_out()
        self._mapper = "auto"
        if made is None or made.symbols is None:
            self.symbols, self._width = self._numbers(*boxes, made=made is not None)
        else:
            rows = (self.in_rows, self.out_set.shape[0])
            fine, coarse = rows[::-1] if request.geometry.transposed else rows
            self.symbols, self._width = {**made.symbols, "rows": fine, "coarse_rows": coarse}, made.width
        self.device = inputs.device
        self.out_count = None if made is None or request.capacity is None else made.count
        self._sorted = None if made is None else made.known
        self._kernels: dict[tuple[Any, ...], Kernel] = {}
        self.briefly: dict[Any, Kernel] = {}
        self._related: dict[tuple[Any, ...], Any] = {}
        self._pairs: dict[tuple[Any, ...], MapPairs] = {}
        # Held while something is built from what threads share.
        self._building = threading.RLock()

    def _numbers(self, in_box: Box | None, out_box: Box | None, *, made: bool) -> tuple[dict[str, int], int]:
        """(the numbers that plans over this map take, bits of their keys); made: whether the outputs were."""
        counts = (self.in_rows, self.out_set.shape[0])
        geometry = self.request.geometry
        rows, coarse_rows = counts[::-1] if geometry.transposed else counts
        fine, coarse = (out_box, in_box) if geometry.transposed else (in_box, out_box)
        # A set without voxels lies wherever the other one is.
        coarse = coarse or geometry.coarse_beside(fine or _NOWHERE)
        fine = fine or geometry.fine_beside(coarse)
        kernel = self.request.kernel
        if isinstance(kernel, SparseKernel):
            box, width = kernel.map_numbers(fine, coarse)
        else:
            box, width = kernel.key_numbers(fine, coarse)
            ascending = made and not geometry.transposed
            self._mapper = kernel.mapper(box, rows, coarse_rows, ascending=ascending)
            if self._mapper == "auto":
                box, width = kernel.map_numbers(fine, coarse)
        return {**box, "rows": rows, "coarse_rows": coarse_rows}, width

    def kernel(self, operation: str, inverse: bool, more: dict[str, Any]) -> Kernel:
        """As SparseMap.kernel."""
        key = (operation, inverse, *more.items())
        if key not in self._kernels:
            request, geometry = self.request, self.request.geometry
            if inverse:
                geometry = dataclasses.replace(geometry, transposed=not geometry.transposed)
            more = {"key_width": self._width, "mapper": self._mapper, **more}
            kernel = sparse_kernel(operation, geometry, request.target, **more)
            self._kernels[key] = kernel.on(self.device)
        return self._kernels[key]

    def out_total(self) -> int:
        """As SparseMap.out_total."""
        if self.request.capacity is None:
            return self.out_set.shape[0]
        # Without inputs nothing was made, and nothing counted.
        return 0 if self.out_count is None else self.request.kernel.on(self.device).total(self.out_count)

    def nbytes(self) -> int:
        """As SparseMap.nbytes."""
        with self._building:
            held = [self._sorted or {}, *self._related.values(), *(pairs.buffers for pairs in self._pairs.values())]
            lists = sum(pairs.count * ITEM_BYTES["i64"] for pairs in self._pairs.values())
        others = {id(buffer): buffer.nbytes for part in held for name, buffer in part.items() if name != "pairs"}
        return int(sum(others.values())) + lists

    @property
    def out_coords(self) -> Any:
        """The outputs' coordinates as the user sees them."""
        if not self._handed_out:
            self._hand_out()
        return self._out_coords

    def _hand_out(self) -> None:
        """Notes what the outputs hold; until now nobody could change them. The first note is the one that counts."""
        self._handed_out.setdefault("outputs", self._checksum(self.out_set))

    def outputs_unchanged(self) -> bool:
        """Whether out_coords hold what they held when the map was built."""
        return not self._handed_out or self._checksum(self.out_set) == self._handed_out["outputs"]

    def pairs_for(self, kernel: Any, in_coords: Any, *, inverse: bool) -> MapPairs:
        """As SparseMap.pairs_for, for the coordinates that the map was built from."""
        related = kernel.signature("map")
        signature = related + kernel.signature("pairs")
        found = self._pairs.get(signature)
        if found is None:
            with self._building:
                found = self._pairs.get(signature)
                if found is None:
                    found = self._pairs[signature] = self._build(kernel, related, in_coords, inverse)
        return found

    def _build(self, kernel: Any, related: tuple[Any, ...], in_coords: Any, inverse: bool) -> MapPairs:
        if related not in self._related:
            inputs = checked_set(in_coords, "coords")
            if not self.outputs_unchanged() or self._checksum(inputs) != self._known:
                raise InputError("the coords of this map were changed after it was built; build it again")
            sets, names = (inputs, self.out_set), ("coords", "out_coords")
            if inverse:
                sets, names = sets[::-1], names[::-1]
            more: dict[str, Any] = {}
            if isinstance(kernel, SparseKernel):
                more = {"known": self._sorted, "names": names}
            elif self.out_count is not None:
                more = {"in_count" if inverse else "out_count": self.out_count}
            self._related[related] = kernel.relate(*sets, self.symbols, **more)
        pairs: MapPairs = kernel.pairs(self._related[related], self.symbols)
        if isinstance(kernel, SparseKernel):
            # Nothing else is worth keeping: for the other direction the table of neighbours is made again.
            self._sorted = kernel.sorted_sets(self._related.pop(related))
        return pairs


class SparseMap:
    """The map of one convolution: a handle for the forward op and for its inverse. Made by `build_map`.

    The coordinates must not be changed while the map is in use; a change is found when pairs are built, on the first
    use in a direction. All methods may be called from several threads.
    """

    def __init__(self, in_coords: Any, state: MapState) -> None:
        self._in_coords, self._state = in_coords, state

    def __reduce__(self) -> tuple[object, ...]:
        request = self._state.request
        # A copy is built again, of copies of the coordinates.
        return _map_of, (request, self._in_coords, None if request.capacity else self._state.out_coords)

    def __repr__(self) -> str:
        return f"SparseMap({self.in_rows} → {self.out_rows} voxels, {self.geometry})"

    @property
    def in_coords(self) -> Any:
        """The coordinates that build_map was given."""
        return self._in_coords

    @property
    def out_coords(self) -> Any:
        """The outputs' coordinates: kind, dtype and columns of in_coords; ascending unless they were given."""
        return self._state.out_coords

    @property
    def geometry(self) -> ConvGeometry:
        """Kernel size, stride, padding, dilation, direction."""
        return self._state.request.geometry

    @property
    def spatial_shape(self) -> Triple | None:
        """(z, y, x) of the inputs, or None where the grid has no edge."""
        return self._state.request.shape

    @property
    def out_spatial_shape(self) -> Triple | None:
        """(z, y, x) of the outputs, or None where the grid has no edge."""
        return self._state.request.out_shape

    @property
    def batch_size(self) -> int | None:
        """As build_map was given it."""
        return self._state.request.batches

    @property
    def in_rows(self) -> int:
        """Rows of in_coords."""
        return self._state.in_rows

    @property
    def out_rows(self) -> int:
        """Rows of out_coords."""
        return self._state.out_set.shape[0]

    def out_total(self) -> int:
        """How many outputs there are, whatever there is room for: out_rows, or with a capacity read from the GPU."""
        return self._state.out_total()

    @property
    def device(self) -> int | None:
        """Number of the GPU that the coordinates lie on, or None in host memory."""
        return self._state.device

    @property
    def symbols(self) -> dict[str, int]:
        """The numbers that plans over this map take."""
        return self._state.symbols

    @property
    def nbytes(self) -> int:
        """Bytes of memory that a map on the CPU holds beside coordinates: sorted sets, and what has been asked for.

        Of a list of pairs, whose room is a guess, what is filled.
        """
        return self._state.nbytes()

    def kernel(self, operation: str, brief: Any = None, *, inverse: bool = False, **more: Any) -> Kernel:
        """An op over the map, compiled; the inverse runs from outputs to inputs.

        Args:
            brief: a key under which known_kernel finds it again. more: fields of SparseOptions.

        Raises:
            InputError, CompileError, LaunchError: see SparseOptions and driver.load_conv.
        """
        kernel = self._state.kernel(operation, inverse, more)
        if brief is not None:
            self._state.briefly[brief] = kernel
        return kernel

    def known_kernel(self, brief: Any) -> Kernel | None:
        """The kernel that was asked for with this key, or None."""
        return self._state.briefly.get(brief)

    def pairs_for(self, kernel: Kernel, *, inverse: bool = False) -> MapPairs:
        """The pairs as `kernel` reads them, built on first use.

        Raises:
            InputError: a set has two equal rows, or was changed since the map was built.
            LaunchError: out of memory or threads.
        """
        return self._state.pairs_for(kernel, self._in_coords, inverse=inverse)

    def pairs(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """(tap, input row, output row) of every pair, int32 [P] each, ordered by tap, then by output row."""
        if self.out_rows == 0:
            nothing = np.zeros(0, np.int32)
            return nothing, nothing, nothing
        # The map's kernels do not depend on channels: the plan of the narrowest convolution has them.
        kernel = self.kernel("conv", c_in=1, c_out=1)
        tap, in_rows, out_rows = kernel.triples(self.pairs_for(kernel))
        order = _by_tap(tap, out_rows)
        return tap[order], in_rows[order], out_rows[order]


def _by_tap(tap: npt.NDArray[np.int32], out_rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The order of taps, and of output rows where taps are equal; faster than a sort by both."""
    # Numbers of 16 bits are sorted digit by digit.
    short = tap.astype(np.uint16) if tap.max(initial=0) < 2**16 else tap
    order = np.argsort(short, kind="stable")
    taps, rows = tap[order], out_rows[order]
    # So it is already where outputs ascend in (batch, z, y, x).
    if ((taps[1:] > taps[:-1]) | (rows[1:] > rows[:-1])).all():
        return order
    order = np.argsort(out_rows, kind="stable")
    return order[np.argsort(short[order], kind="stable")]


def build_map(
    coords: Any,
    kernel_size: int | Triple,
    *,
    stride: int | Triple = 1,
    padding: int | Triple = 0,
    dilation: int | Triple = 1,
    transposed: bool = False,
    output_padding: int | Triple = 0,
    spatial_shape: Triple | None = None,
    batch_size: int | None = None,
    out_coords: Any = None,
    capacity: int | None = None,
    target: str | None = None,
) -> SparseMap:
    """The map of a convolution: its output coordinates, and a handle for all ops that run over it.

    Through tap i, coarse voxel c meets fine voxel c·stride − padding + i·dilation. A convolution reads fine voxels and
    writes coarse ones; transposed, it reads coarse ones and writes fine ones. An output is every voxel that some input
    meets; the rows of outputs ascend in (batch, z, y, x).

    Args:
        coords: int32 [N, 3] (z, y, x) or [N, 4] (batch, z, y, x) of the inputs, any order, every voxel once; int64 is
            accepted if it fits. Negative values are fine unless spatial_shape is given.
        kernel_size, stride, padding, dilation: one number or (z, y, x).
        spatial_shape: (z, y, x) that coords must lie in. Outputs then lie in the shape that spconv 2.x gives
            (ConvGeometry.output_shape), as those of a dense convolution do; without it the grid has no edge, and
            coordinates are divided rounding down. Sizes of 0, such as those of an out_spatial_shape that has no room
            for an output, are accepted: no coords lie in them.
        output_padding: added to the output shape of a transposed convolution.
        batch_size: number of batches that coords must lie in.
        out_coords: the outputs, if they are to be these and not those that inputs reach; kind and columns as coords.
        capacity: for GPUs, see below.
        target: as in compile_conv; the target must be one this host can run.

    On a GPU the number of outputs is known to the device only. The map is built in two phases: outputs are made in
    buffers that have room for as many as there can be (each input's, and no more than the box has cells); then their
    number, one word, is read back, and out_coords get as many rows. With a capacity there is no second phase, and
    nothing is read if spatial_shape and batch_size are given too: out_coords have `capacity` rows, those behind the
    last output belong to batch −1, where no voxel meets another, and their features are those of an output without
    inputs. Outputs beyond the capacity are left out; out_total() says how many there are.

    Raises:
        InputError: an argument is not accepted.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    request = map_request(
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        output_padding=output_padding,
        spatial_shape=spatial_shape,
        batch_size=batch_size,
        target=target_for(target, coords),
        capacity=capacity,
    )
    return _map_of(request, coords, out_coords)


def _map_of(request: MapRequest, coords: Any, out_coords: Any) -> SparseMap:
    return SparseMap(coords, make_map(request, coords, out_coords))


def make_map(request: MapRequest, coords: Any, out_coords: Any = None) -> MapState:
    """What build_map does once its arguments are checked."""
    inputs = checked_set(coords, "coords")
    kernel, made = request.kernel.on(inputs.device), None
    box, checksum = set_box(kernel, inputs, request, request.shape, "coords")
    if out_coords is None:
        with lasting_tensors():
            made, out_box = made_outputs(kernel, inputs, box, request)
            out_coords = like_coords(coords, made.rows)
    elif request.capacity is not None:
        raise InputError("both out_coords and a capacity are given; accepted: one of them")
    else:
        outputs = checked_set(out_coords, "out_coords")
        check_alike(coords, out_coords)
        out_box, _ = set_box(kernel, outputs, request, request.out_shape, "out_coords")
    return MapState(request, inputs, out_coords, (box, out_box), made, checksum)
