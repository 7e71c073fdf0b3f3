"""Weights as images of shared memory: [tap][slice][step][columns][block_k], what one step of wgmma_rows.py copies.

A row is an output channel; the 16-byte chunks of a row lie where the matrix unit expects them (warpgroup.MatrixTile).
C_in is padded to whole steps and C_out to whole slices with zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from spconv_compiler.passes.gpu.channels import Channels
from spconv_compiler.passes.gpu.lanes import block, plus, store, thread, times
from spconv_compiler.passes.gpu.warpgroup import MatrixTile
from spconv_compiler.passes.kernel_builder import V, const, i32, if_

# Elements of a chunk, two bytes each.
RUN = 8


@dataclasses.dataclass(frozen=True)
class Images:
    """Shape of packed weights: `columns` output channels a slice, `block_k` input channels a step."""

    taps: int
    c_in: int
    c_out: int
    columns: int
    block_k: int

    @property
    def slices(self) -> int:
        return -(-self.c_out // self.columns)

    @property
    def steps(self) -> int:
        return -(-self.c_in // self.block_k)

    @property
    def elements(self) -> int:
        return self.taps * self.slices * self.steps * self.columns * self.block_k

    @property
    def name(self) -> str:
        """The parameters, for names of kernels."""
        return f"n{self.columns}_k{self.block_k}"


def pack_images(images: Images, lanes: int) -> Callable[..., None]:
    """Body(weight [C_out, taps, C_in], packed): a lane per chunk."""
    tile, chunks = MatrixTile(images.block_k * 2), images.block_k // RUN
    total = images.elements // RUN

    def body(weight: V, packed: V) -> None:
        number = plus(times(block(), lanes), thread())
        size = const(images.c_out * images.taps * images.c_in, i32())
        rows = Channels.of(weight, size, images.c_in, RUN, (images.steps * chunks - 1) * RUN)
        with if_(number < total):
            chunk, rest = number % chunks, number // chunks
            row, image = rest % images.columns, rest // images.columns
            step, rest = image % images.steps, image // images.steps
            part, tap = rest % images.slices, rest // images.slices
            out = plus(times(part, images.columns), row)
            channel = plus(times(step, images.block_k), times(chunk, RUN))
            start = plus(times(plus(times(out, images.taps), tap), images.c_in), channel)
            limit = (out < images.c_out).select(const(images.c_in, i32()), 0)
            place = plus(times(image, images.columns * images.block_k), tile.place(row, chunk) // 2)
            store(rows.edge(start, channel, 0, limit), packed, place)

    return body


def widen_rows(c_in: int, padded: int, lanes: int) -> Callable[..., None]:
    """Body(features [N, C_in], wide [N, padded], rows): rows of whole chunks, zeros behind the last channel."""
    chunks = padded // RUN

    def body(features: V, wide: V, rows: V) -> None:
        number = plus(times(block(), lanes), thread())
        gather = Channels.of(features, times(rows, c_in), c_in, RUN, padded - RUN)
        with if_(number < times(rows, chunks)):
            row, channel = number // chunks, times(number % chunks, RUN)
            store(gather.edge(plus(times(row, c_in), channel), channel, 0), wide, times(number, RUN))

    return body
