"""Plain numpy meaning of every op: the oracle for tests and for `--check`.

Nothing here is shared with the compiled path. Tensors may be numpy arrays or torch tensors (bf16 included);
results are numpy arrays. Taps are in (z, y, x) row-major order throughout; tap t of row i reads the row at
coords[i] + dilation * (t_zyx - K // 2).

Names of the weight layouts:
  native  [C_out, kz, ky, kx, C_in]   spconv 2.x, and this package's API
  torch   [C_out, C_in, kz, ky, kx]   torch.nn.Conv3d
  taps    [kz*ky*kx, C_in, C_out]     TorchSparse, MinkowskiEngine (in this file's tap order)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.errors import InputError

Floats = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.int32]

WEIGHT_LAYOUTS = ("native", "torch", "taps")
# Significand bits (the hidden one included), smallest subnormal.
_DTYPES = {"f32": (24, 2.0**-149), "bf16": (8, 2.0**-133), "f16": (11, 2.0**-24)}


def to_numpy(tensor: Any) -> npt.NDArray[Any]:
    """A numpy array of the same values; bf16 and f16 torch tensors become float32, which is exact."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        return np.asarray((tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor).numpy())
    return np.asarray(tensor)


def round_to(values: Any, dtype: str) -> Floats:
    """Values rounded to nearest even in "f32", "bf16" or "f16", held in float32."""
    exact = to_numpy(values).astype(np.float32)
    if dtype == "f32":
        return exact
    if dtype == "f16":
        return exact.astype(np.float16).astype(np.float32)
    if dtype != "bf16":
        raise InputError(f"dtype={dtype!r}; accepted: {', '.join(_DTYPES)}")
    bits = exact.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(exact), exact, rounded.view(np.float32))


def as_triple(size: int | Sequence[int]) -> tuple[int, int, int]:
    """An int for all axes, or (z, y, x), as three ints."""
    values = [int(n) for n in np.atleast_1d(size)]
    if len(values) not in (1, 3):
        raise InputError(f"{size!r} has {len(values)} values; accepted: an int or three (z, y, x)")
    return (values[0], values[0], values[0]) if len(values) == 1 else (values[0], values[1], values[2])


def kernel_offsets(kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1) -> npt.NDArray[np.int64]:
    """int64 [taps, 3]: dilation * (tap - K // 2) in (z, y, x), taps in row-major order. K is odd per axis."""
    size, spread = as_triple(kernel_size), as_triple(dilation)
    if any(k < 1 or k % 2 == 0 for k in size) or any(d < 1 for d in spread):
        raise InputError(f"kernel_size={size}, dilation={spread}; accepted: odd sizes >= 1 and dilations >= 1")
    taps = itertools.product(*(range(k) for k in size))
    return np.array([[d * (t - k // 2) for t, k, d in zip(tap, size, spread, strict=True)] for tap in taps])


def as_coords(coords: Any) -> npt.NDArray[np.int64]:
    """int64 [N, 4] (batch, z, y, x); [N, 3] gets batch 0."""
    rows = to_numpy(coords)
    if rows.ndim != 2 or rows.shape[1] not in (3, 4) or rows.dtype.kind != "i":
        raise InputError(f"coords has shape {list(rows.shape)}, dtype {rows.dtype}; accepted: int [N, 3] or [N, 4]")
    rows = rows.astype(np.int64)
    return rows if rows.shape[1] == 4 else np.insert(rows, 0, 0, axis=1)


def kernel_map(coords: Any, kernel_size: int | Sequence[int] = 3, dilation: int | Sequence[int] = 1) -> Rows:
    """Neighbour table int32 [N, taps]: the row that each output row reads through each tap, -1 for none.

    Of rows with equal coordinates the lowest is the neighbour. Sorted packed keys, one search per tap;
    boxes too large for an int64 key go through `kernel_map_naive`.
    """
    rows, offsets = as_coords(coords), kernel_offsets(kernel_size, dilation)
    if len(rows) == 0:
        return np.zeros((0, len(offsets)), np.int32)
    # A halo as wide as the kernel's reach keeps shifted keys from running into the next line.
    halo = np.concatenate([[0], np.abs(offsets).max(axis=0)])
    low = rows.min(axis=0) - halo
    extent = [int(n) for n in rows.max(axis=0) + halo - low + 1]
    if math.prod(extent) >= 2**63:
        return kernel_map_naive(coords, kernel_size, dilation)
    strides = np.array([math.prod(extent[axis + 1 :]) for axis in range(4)], np.int64)
    keys = (rows - low) @ strides
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    table = np.full((len(rows), len(offsets)), -1, np.int32)
    for tap, offset in enumerate(offsets):
        wanted = sorted_keys + int(offset @ strides[1:])
        place = np.minimum(np.searchsorted(sorted_keys, wanted), len(rows) - 1)
        table[order, tap] = np.where(sorted_keys[place] == wanted, order[place], -1)
    return table


def kernel_map_naive(coords: Any, kernel_size: int | Sequence[int] = 3, dilation: int | Sequence[int] = 1) -> Rows:
    """The same table through a dictionary of coordinates: slow, and too simple to be wrong."""
    rows = [tuple(row) for row in as_coords(coords).tolist()]
    offsets = kernel_offsets(kernel_size, dilation).tolist()
    first_row: dict[tuple[int, ...], int] = {}
    for index, row in enumerate(rows):
        first_row.setdefault(row, index)
    table = [[first_row.get((b, z + dz, y + dy, x + dx), -1) for dz, dy, dx in offsets] for b, z, y, x in rows]
    return np.array(table, np.int32).reshape(len(rows), len(offsets))


@dataclass(frozen=True, eq=False)
class Pairs:
    """The (input row, output row) pairs of every tap, tap after tap.

    in_rows, out_rows: int32 [P]. tap_start: int64 [taps + 1]; tap t owns [tap_start[t], tap_start[t + 1]).
    Unpadded, out_rows ascends inside a tap. Padded, each tap is filled up with in_row 0, out_row -1.
    """

    in_rows: Rows
    out_rows: Rows
    tap_start: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.in_rows.shape[0])

    def of_tap(self, tap: int) -> tuple[Rows, Rows]:
        """(in_rows, out_rows) of one tap."""
        part = slice(int(self.tap_start[tap]), int(self.tap_start[tap + 1]))
        return self.in_rows[part], self.out_rows[part]


def pairs(table: Rows) -> Pairs:
    """The pairs of a neighbour table, tap-major, rows ascending inside a tap."""
    by_tap = np.ascontiguousarray(table.T)
    tap, out_rows = np.nonzero(by_tap >= 0)
    counts = np.bincount(tap, minlength=len(by_tap))
    return Pairs(by_tap[tap, out_rows], out_rows.astype(np.int32), np.concatenate([[0], np.cumsum(counts)]))


def pad_pairs(unpadded: Pairs, tile: int) -> Pairs:
    """Each tap rounded up to whole tiles with in_row 0 and out_row -1; an empty tap gets no tile."""
    counts = np.diff(unpadded.tap_start)
    start = np.concatenate([[0], np.cumsum(-(-counts // tile) * tile)])
    in_rows, out_rows = np.zeros(start[-1], np.int32), np.full(start[-1], -1, np.int32)
    for tap, count in enumerate(counts):
        in_rows[start[tap] : start[tap] + count], out_rows[start[tap] : start[tap] + count] = unpadded.of_tap(tap)
    return Pairs(in_rows, out_rows, start)


def tile_taps(padded: Pairs, tile: int) -> Rows:
    """int32 [tiles]: the tap whose weights each tile of padded pairs takes."""
    counts = np.diff(padded.tap_start) // tile
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def to_native_weight(weight: Any, layout: str, kernel_size: int | Sequence[int] | None = None) -> npt.NDArray[Any]:
    """A weight in one of WEIGHT_LAYOUTS as [C_out, kz, ky, kx, C_in]; "taps" needs kernel_size."""
    array = to_numpy(weight)
    if layout not in WEIGHT_LAYOUTS:
        raise InputError(f"weight_layout={layout!r}; accepted: {', '.join(WEIGHT_LAYOUTS)}")
    if array.ndim != (3 if layout == "taps" else 5):
        raise InputError(f"weight has shape {list(array.shape)}, which is not the layout {layout!r}")
    if layout == "native":
        return array
    if layout == "torch":
        return np.ascontiguousarray(array.transpose(0, 2, 3, 4, 1))
    size = as_triple(kernel_size) if kernel_size is not None else ()
    if math.prod(size) != array.shape[0] or not size:
        raise InputError(f"weight has {array.shape[0]} taps; kernel_size={kernel_size!r} does not give as many")
    return np.ascontiguousarray(array.reshape(*size, *array.shape[1:]).transpose(4, 0, 1, 2, 3))


def from_native_weight(weight: Any, layout: str) -> npt.NDArray[Any]:
    """A native weight in one of WEIGHT_LAYOUTS."""
    array = to_numpy(weight)
    if layout == "native":
        return array
    if layout == "torch":
        return np.ascontiguousarray(array.transpose(0, 4, 1, 2, 3))
    if layout == "taps":
        c_out, *size, c_in = array.shape
        return np.ascontiguousarray(array.transpose(1, 2, 3, 4, 0).reshape(math.prod(size), c_in, c_out))
    raise InputError(f"weight_layout={layout!r}; accepted: {', '.join(WEIGHT_LAYOUTS)}")


def pack_weight_mfma(weight: Any, n_tile: int = 16, k_pack: int = 8, k_step: int = 32) -> npt.NDArray[Any]:
    """[tap][n_tile][k / 8][16][8] for 16x16x32 matrix instructions, from the native layout.

    Element (t, n, q, j, e) is the weight of tap t from channel 8 q + e to channel 16 n + j. C_in is padded
    with zeros to a multiple of k_step, C_out to a multiple of n_tile.
    """
    taps = from_native_weight(weight, "taps")
    n_taps, c_in, c_out = taps.shape
    k, n = -(-c_in // k_step) * k_step, -(-c_out // n_tile) * n_tile
    padded = np.zeros((n_taps, k, n), taps.dtype)
    padded[:, :c_in, :c_out] = taps
    tiles = padded.reshape(n_taps, k // k_pack, k_pack, n // n_tile, n_tile)
    return np.ascontiguousarray(tiles.transpose(0, 3, 1, 4, 2))


def gather_gemm_scatter(
    features: Any, weight: Any, pair_list: Pairs, n_out: int, accumulate: npt.DTypeLike = np.float64
) -> Floats:
    """[n_out, C_out]: sums in[in_row] @ W[tap] into out_row over all pairs; pairs with out_row -1 do nothing.

    weight is native. Products and sums are in `accumulate`.
    """
    values = to_numpy(features).astype(accumulate)
    taps = from_native_weight(weight, "taps").astype(accumulate)
    out = np.zeros((n_out, taps.shape[2]), accumulate)
    for tap in range(len(taps)):
        in_rows, out_rows = pair_list.of_tap(tap)
        real = out_rows >= 0
        np.add.at(out, out_rows[real], values[in_rows[real]] @ taps[tap])
    return out


def subm_conv3d(
    coords: Any,
    features: Any,
    weight: Any,
    bias: Any = None,
    dilation: int | Sequence[int] = 1,
    accumulate: npt.DTypeLike = np.float64,
    table: Rows | None = None,
) -> Floats:
    """Submanifold convolution: out[i] = bias + sum over taps of W[tap] . in[table[i, tap]]; [N, C_out].

    coords: int [N, 3] or [N, 4]. features: [N, C_in]. weight: native. bias: [C_out] or None.
    accumulate: the dtype of products, sums and result. table: the kernel map, if it is already known.
    """
    filters = to_numpy(weight)
    if table is None:
        table = kernel_map(coords, filters.shape[1:4], dilation)
    out = gather_gemm_scatter(features, filters, pairs(table), len(table), accumulate)
    return out if bias is None else out + to_numpy(bias).astype(accumulate)


def finish(total: Any, residual: Any = None, activation: str = "none", negative_slope: float = 0.01) -> Floats:
    """What an epilogue makes of a sum, in float64: residual added, then the activation (epilogue.ACTIVATIONS)."""
    x = to_numpy(total).astype(np.float64)
    x = x if residual is None else x + to_numpy(residual).astype(np.float64)
    with np.errstate(over="ignore"):
        match activation:
            case "none":
                return x
            case "relu":
                return np.where(x < 0, 0.0, x)
            case "leaky_relu":
                return np.where(x < 0, x * np.float32(negative_slope), x)
            case "gelu":
                below: Floats = 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(x * -math.sqrt(0.5))
                return x * below
            case "silu":
                sigmoid: Floats = 1.0 / (1.0 + np.exp(-x))
                return x * sigmoid
    raise InputError(f"activation is {activation!r}; accepted: none, relu, leaky_relu, gelu, silu")


def dense_conv3d(
    coords: Any, features: Any, weight: Any, bias: Any = None, dilation: int | Sequence[int] = 1
) -> Floats:
    """The same by torch.nn.functional.conv3d in float64, on the dense volume, read at the active sites.

    Shares no step with `subm_conv3d`; for small boxes and distinct coordinates only.
    """
    import torch

    rows, filters = as_coords(coords), to_numpy(weight).astype(np.float64)
    spread = as_triple(dilation)
    if len(rows) == 0:
        return np.zeros((0, filters.shape[0]))
    rows = rows - rows.min(axis=0)
    volume = np.zeros((*(rows.max(axis=0) + 1), filters.shape[4]))
    volume[tuple(rows.T)] = to_numpy(features)
    dense = torch.nn.functional.conv3d(
        torch.from_numpy(volume).permute(0, 4, 1, 2, 3),
        torch.from_numpy(filters).permute(0, 4, 1, 2, 3),
        None if bias is None else torch.from_numpy(to_numpy(bias).astype(np.float64)),
        padding=tuple(d * (k // 2) for d, k in zip(spread, filters.shape[1:4], strict=True)),
        dilation=spread,
    )
    return np.asarray(dense.permute(0, 2, 3, 4, 1).numpy()[tuple(rows.T)])


def error_bound(
    features: Any,
    weight: Any,
    table: Rows,
    dtype: str = "f32",
    bias: Any = None,
    unit_roundoff: float = 2.0**-24,
) -> Floats:
    """float64 [N, C_out]: how far a correct result in `dtype`, accumulated in f32, may be from the exact one.

    features and weight must already be representable in the kernel's input dtype (see `round_to`), so that
    reading them adds no error. A sum of n products in any order then differs from the exact one by at most
    gamma(n) * sum |a| |w|, gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 3.1), where n = neighbours of the row * C_in, plus one for the bias. Storing
    in `dtype` adds half a unit in the last place of the result. Flushing subnormal products and sums to zero
    adds 2^-126 each. The 2^-53 is the float64 reference's own share.
    unit_roundoff: 2^-24 for rounding to nearest; 2^-23 for units that truncate.
    """
    if dtype not in _DTYPES:
        raise InputError(f"dtype={dtype!r}; accepted: {', '.join(_DTYPES)}")
    digits, smallest = _DTYPES[dtype]
    values, filters, known = to_numpy(features), to_numpy(weight), pairs(table)
    magnitude = gather_gemm_scatter(np.abs(values), np.abs(filters), known, len(table))
    terms = (table >= 0).sum(axis=1, keepdims=True) * float(filters.shape[4])
    if bias is not None:
        magnitude = magnitude + np.abs(to_numpy(bias).astype(np.float64))
        terms = terms + 1.0
    slack = terms * (unit_roundoff + 2.0**-53)
    bound: Floats = slack / (1.0 - slack) * magnitude + 2.0 * terms * 2.0**-126
    if dtype != "f32":
        exact = gather_gemm_scatter(values, filters, known, len(table))
        exact = exact if bias is None else exact + to_numpy(bias).astype(np.float64)
        bound = bound + 2.0**-digits * (np.abs(exact) + bound) + smallest
    return bound


@dataclass(frozen=True)
class Comparison:
    """How a result compares with the reference, element by element.

    max_error: largest |actual - expected|. max_ratio: largest error as a part of its bound (> 1 is wrong).
    bad: elements beyond their bound, or NaN / infinite on one side only. worst: (row, channel) of the worst.
    """

    max_error: float
    max_ratio: float
    bad: int
    worst: tuple[int, int] | None

    @property
    def ok(self) -> bool:
        """True if every element is within its bound."""
        return self.bad == 0


def compare(actual: Any, expected: Any, bound: Any) -> Comparison:
    """Compares [N, C] results with a bound per element; NaN equals NaN, and infinities must be the same."""
    left, right = to_numpy(actual).astype(np.float64), to_numpy(expected).astype(np.float64)
    if left.shape != right.shape:
        raise InputError(f"results of shape {list(left.shape)} and {list(right.shape)} cannot be compared")
    if left.size == 0:
        return Comparison(0.0, 0.0, 0, None)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(same, 0.0, np.abs(left - right))
        error = np.where(np.isnan(error), np.inf, error)
        ratio = np.where(error == 0.0, 0.0, error / np.broadcast_to(to_numpy(bound), error.shape))
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
    row, channel = np.unravel_index(int(ratio.argmax()), ratio.shape)
    return Comparison(float(error.max()), float(ratio.max()), int((ratio > 1.0).sum()), (int(row), int(channel)))
