"""Operands of CPU gemm kernels: packed weights, and pairs in the layout of passes/cpu/chunk_pairs.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from cpu_harness import Array, aligned, kernel_of, kinds

from spconv_compiler.dialect.types import element_named
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.row_panels import PackRowPanels, RowPanels

TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NUMPY = {"f32": np.float32, "bf16": np.uint16, "f16": np.float16}
CHUNK_ROWS = 64


def bits_of(tensor: torch.Tensor) -> Array:
    """The tensor as an array; bf16 as uint16."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().view(
        NUMPY[{torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[tensor.dtype]]
    )


def pack(panels: RowPanels, weight: torch.Tensor, threads: int = 2) -> Array:
    """The kernel's packed form of weight [c_out, taps, c_in]."""
    dtype = str(weight.dtype).removeprefix("torch.").replace("float", "f")

    def define(functions: Functions) -> None:
        functions.kernel("pack", kinds("ppn"), PackRowPanels(functions, "pack", panels, element_named(dtype)))

    packed = aligned([panels.elements], np.uint16 if panels.pair_k == 2 else np.float32)
    packed[:] = 7
    assert kernel_of(define, "pack")(bits_of(weight), packed, threads) == 0
    return packed


@dataclasses.dataclass
class Pairs:
    """Random pairs in the layout of chunk_pairs.py, and the same as (tap, input, output) rows. No odd row is read."""

    words: Array
    chunk_first: Array
    tap_first: Array
    origin: Array
    triples: Array


def random_pairs(rows: int, taps: int, seed: int) -> Pairs:
    """Chunks without a pair of some tap, with a few, and with all."""
    shares = (0.0, 0.05, 0.4, 1.0)

    def places(chunk: int, tap: int, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        return np.nonzero(rng.random(size) < shares[(tap + chunk) % 4])[0]

    return _pairs(rows, taps, seed, places)


def counted_pairs(rows: int, counts: Sequence[int], seed: int) -> Pairs:
    """So many pairs of each tap in every chunk that has as many rows."""

    def places(chunk: int, tap: int, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        return np.sort(rng.permutation(size)[: counts[tap]])

    return _pairs(rows, len(counts), seed, places)


def _pairs(rows: int, taps: int, seed: int, places_of: Callable[..., npt.NDArray[np.int64]]) -> Pairs:
    rng = np.random.default_rng(seed)
    words, first, starts, triples = [], [], [], []
    origin = rng.permutation(rows).astype(np.int32)
    for start in range(0, rows, CHUNK_ROWS):
        size = min(CHUNK_ROWS, rows - start)
        first.append(len(words))
        starts.append([0])
        for tap in range(taps):
            places = places_of(start // CHUNK_ROWS, tap, size, rng)
            inputs = 2 * rng.integers(0, rows // 2, len(places))
            words += [int(place) << 32 | int(row) for place, row in zip(places, inputs, strict=True)]
            triples += [(tap, int(row), int(origin[start + p])) for p, row in zip(places, inputs, strict=True)]
            starts[-1].append(len(words) - first[-1])
    return Pairs(
        np.array(words, np.int64),
        np.array(first, np.int64),
        np.array(starts, np.int32),
        origin,
        np.array(triples, np.int64).reshape(-1, 3),
    )


