"""bf16 in tile registers (AMX). What runs them needs a processor and a system that let this process have them."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import numpy as np
import pytest
import torch
from cpu_gemm_harness import CHUNK_ROWS, Pairs, bits_of, counted_pairs, pack, random_pairs
from cpu_harness import Kernel, aligned, kernel_of, kinds
from test_codegen_cpu import needs_objdump, run_objdump
from tile_harness import AMX, UNIT, needs_tiles

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler.dialect.types import element_named
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.cpu.functions import Functions, call_intrinsic
from spconv_compiler.passes.cpu.row_panels import RowPanels
from spconv_compiler.passes.cpu.tile_block import TileBlock
from spconv_compiler.passes.cpu.tile_gemm import TileGemm
from spconv_compiler.passes.kernel_builder import V, const, f32, i32, i64
from spconv_compiler.schedules import Problem, choose

# Bits of XINUSE: the shapes of tile registers, and their contents.
TILE_STATE = 1 << 17 | 1 << 18
CHANNELS = (1, 3, 5, 16, 18, 33, 64, 96, 100, 128, 256, 512)


def block_for(taps: int, c_in: int, c_out: int) -> TileBlock:
    """What the schedule chooses."""
    values = choose(Problem(taps, c_in, c_out, "bf16"), AMX, "chunk_tiles")[1].gemm.parameters
    panels = RowPanels(taps, c_in, c_out, values["tile_n"], values["pair_k"], values["tile_k"])
    return TileBlock(panels, values["tile_m"], AMX.lanes, UNIT)


def in_use(functions: Functions) -> None:
    """Defines what gives the parts of this thread's state that are not as a new thread has them."""

    def body() -> V:
        return call_intrinsic("llvm.x86.xgetbv", [const(1, i32())], i64())

    functions.kernel("in_use", [], body)


def gemm_for(block: TileBlock) -> tuple[Kernel, TileGemm]:
    bodies: list[TileGemm] = []

    def define(functions: Functions) -> None:
        element = element_named("bf16")
        bodies.append(TileGemm(functions, "gemm", block, CHUNK_ROWS, element, f32(), Epilogue(), True, None))
        functions.kernel("gemm", kinds("p" * 9 + "nn"), bodies[0])

    return kernel_of(define, "gemm", AMX), bodies[0]


def convolved(pairs: Pairs, features: torch.Tensor, weight: torch.Tensor, threads: int = 2) -> torch.Tensor:
    """Sums f32 [rows, c_out] by the kernel; what surrounds them must stay as it was."""
    (rows, c_in), (c_out, taps, _) = features.shape, weight.shape
    block = block_for(taps, c_in, c_out)
    gemm, body = gemm_for(block)
    out = np.full((rows + 1, c_out), 7, np.float32)
    scratch = aligned([threads, body.scratch_bytes], np.uint8)
    scratch[:] = 0xFF  # NaN, wherever it is read before it is written
    bias = np.zeros(c_out, np.float32)
    weights = pack(block.panels, weight)
    buffers = [bits_of(features), weights, bias, out, pairs.words, pairs.chunk_first, pairs.tap_first, pairs.origin]
    assert gemm(*buffers, scratch, rows, threads) == 0
    assert (out[rows] == 7).all()
    return torch.from_numpy(out[:rows])


def wanted(pairs: Pairs, features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(len(features), len(weight), dtype=torch.float64)
    for tap, row, place in pairs.triples.tolist():
        sums[place] += weight[:, tap].double() @ features[row].double()
    return sums


def whole_numbers(shape: tuple[int, ...], most: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator).bfloat16()


@needs_tiles
@pytest.mark.parametrize("c_in", CHANNELS)
@pytest.mark.parametrize("c_out", [1, 16, 17, 33, 96])
def test_sums_of_whole_numbers_are_exact(c_in: int, c_out: int) -> None:
    """They have one value in any order. Odd rows, which no pair reads, are NaN."""
    pairs = random_pairs(150, 5, c_in)
    features, weight = whole_numbers((150, c_in), 4, c_out), whole_numbers((c_out, 5, c_in), 3, c_in)
    features[1::2] = torch.nan
    torch.testing.assert_close(
        convolved(pairs, features, weight).double(), wanted(pairs, features, weight), rtol=0, atol=0
    )


@needs_tiles
@pytest.mark.parametrize("c_in", [16, 64, 128])
def test_every_number_of_pairs(c_in: int) -> None:
    """Around the ends of blocks of 16 and 32 rows."""
    counts = (0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64)
    pairs = counted_pairs(2 * CHUNK_ROWS, counts, c_in)
    features, weight = whole_numbers((2 * CHUNK_ROWS, c_in), 4, 1), whole_numbers((32, len(counts), c_in), 3, 2)
    assert np.diff(pairs.tap_first, axis=1).tolist() == [list(counts)] * 2
    torch.testing.assert_close(
        convolved(pairs, features, weight).double(), wanted(pairs, features, weight), rtol=0, atol=0
    )


@needs_tiles
@pytest.mark.parametrize("c_in", [2, 18, 64, 100])
def test_weights_that_say_where_they_stand(c_in: int) -> None:
    """A row with a single one picks a column of the weight: its numbers name tap, input and output channel."""
    pairs = counted_pairs(CHUNK_ROWS, (1, 1, 1), c_in)
    taps = torch.arange(3).reshape(1, 3, 1)
    # Different for every two that differ in one place; at most 256, as bf16 has whole numbers.
    places = torch.arange(24).reshape(-1, 1, 1) * 3 + taps * 73 + torch.arange(c_in) * 5 % 37
    weight = places.bfloat16()
    assert (weight == places).all()
    for channel in (0, 1, c_in // 2, c_in - 1):
        features = torch.zeros(CHUNK_ROWS, c_in).bfloat16()
        features[:, channel] = 1
        found = convolved(pairs, features, weight)
        torch.testing.assert_close(found.double(), wanted(pairs, features, weight), rtol=0, atol=0)


@needs_tiles
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("c_in", [5, 64, 128])
def test_what_is_not_finite_reaches_its_neighbours_only(c_in: int, value: float) -> None:
    pairs = random_pairs(150, 5, 3)
    features, weight = whole_numbers((150, c_in), 4, 1), whole_numbers((20, 5, c_in), 3, 2)
    weight[weight == 0] = 1
    row = pairs.triples[0, 1]
    features[row] = value
    found = convolved(pairs, features, weight)
    touched = np.unique(pairs.triples[pairs.triples[:, 1] == row][:, 2])
    assert 0 < len(touched) < 100
    apart = np.setdiff1d(np.arange(150), touched)
    assert not found[touched].isfinite().any()
    torch.testing.assert_close(found[apart].double(), wanted(pairs, features, weight)[apart], rtol=0, atol=0)


@needs_tiles
@pytest.mark.parametrize("c_in", [16, 64, 300])
def test_rows_do_not_depend_on_threads_or_on_rows_beside_them(c_in: int) -> None:
    generator = torch.Generator().manual_seed(c_in)
    features = torch.randn(300, c_in, generator=generator).bfloat16()
    weight = torch.randn(40, 5, c_in, generator=generator).bfloat16()
    pairs = random_pairs(300, 5, 1)
    first = convolved(pairs, features, weight, threads=1)
    assert torch.equal(convolved(pairs, features, weight, threads=4), first)

    coords = torch.randint(0, 9, (600, 3), generator=generator, dtype=torch.int32)
    coords = torch.nn.functional.pad(torch.unique(coords, dim=0), (1, 0))
    rows = torch.randn(len(coords), c_in, generator=generator).bfloat16()
    cube = torch.randn(40, 3, 3, 3, c_in, generator=generator).bfloat16()
    order = torch.randperm(len(coords), generator=generator)
    whole = sc.subm_conv3d(coords, rows, cube, target=AMX.name)
    permuted = sc.subm_conv3d(coords[order].clone(), rows[order].clone(), cube, target=AMX.name)
    assert torch.equal(permuted, whole[order])


@needs_tiles
@pytest.mark.parametrize(("c_in", "c_out"), [(1, 1), (3, 16), (16, 5), (33, 18), (64, 64), (100, 96), (256, 128)])
def test_convolutions_are_within_the_bound_of_the_reference(c_in: int, c_out: int) -> None:
    """Random numbers, whose sums round: to bf16 by half a step, and less on the way there."""
    generator = torch.Generator().manual_seed(c_in)
    coords = torch.unique(torch.randint(0, 12, (1000, 3), generator=generator, dtype=torch.int32), dim=0)
    coords = torch.cat([torch.zeros(len(coords), 1, dtype=torch.int32), coords], 1)
    features = torch.randn(len(coords), c_in, generator=generator).bfloat16()
    weight = torch.randn(c_out, 3, 3, 3, c_in, generator=generator).bfloat16()
    bias = torch.randn(c_out, generator=generator)
    found = sc.subm_conv3d(coords, features, weight, bias=bias, target=AMX.name)
    table = reference.kernel_map(coords)
    exact = reference.subm_conv3d(coords, features, weight, bias, table=table)
    assert reference.compare(found, exact, reference.error_bound(features, weight, table, "bf16", bias)).ok


@needs_tiles
def test_denormal_numbers_are_zeros() -> None:
    pairs = counted_pairs(CHUNK_ROWS, (64,), 1)
    features, weight = torch.full((CHUNK_ROWS, 4), 2.0**-130).bfloat16(), torch.ones(3, 1, 4).bfloat16()
    assert (features != 0).all() and (convolved(pairs, features, weight) == 0).all()
    assert (convolved(pairs, features * 2.0**4, weight) == 2.0**-124).all()


@needs_tiles
def test_no_thread_keeps_tile_registers() -> None:
    target = dataclasses.replace(AMX, llvm_features=(*AMX.llvm_features, "+xsave"))
    block = block_for(1, 16, 16)

    def define(functions: Functions) -> None:
        in_use(functions)
        functions.kernel("begin", [], lambda: block.begin(functions, "shapes"))
        functions.kernel("end", [], block.end)

    state = kernel_of(define, "in_use", target)
    begin, end = Kernel(state.module, "begin"), Kernel(state.module, "end")
    assert state() & TILE_STATE == 0
    begin()
    assert state() & TILE_STATE != 0
    end()
    pairs = random_pairs(150, 5, 3)
    # One worker is the thread that calls.
    convolved(pairs, whole_numbers((150, 8), 4, 1), whole_numbers((8, 5, 8), 3, 2), threads=1)
    assert state() & TILE_STATE == 0


@pytest.mark.parametrize(
    ("c_in", "c_out", "tall", "shapes"),
    [
        # Sums, inputs, weights: (rows, bytes of a row).
        (5, 9, 1, [(16, 64), (16, 12), (3, 64)]),
        (18, 40, 1, [(16, 64)] * 2 + [(16, 36)] + [(9, 64)] * 2),
        (64, 64, 1, [(16, 64)] * 8),
        (96, 16, 1, [(16, 64)] * 7),
        (128, 64, 2, [(16, 64)] * 8),
        (128, 16, 2, [(16, 64)] * 5),
    ],
)
def test_shapes_of_the_registers(c_in: int, c_out: int, tall: int, shapes: list[tuple[int, int]]) -> None:
    block = block_for(27, c_in, c_out)
    content = block.configuration()
    assert block.tall == tall and content[:16] == b"\1" + bytes(15)
    widths, heights = np.frombuffer(content[16:48], "<u2"), np.frombuffer(content[48:], np.uint8)
    found = [(int(rows), int(width)) for rows, width in zip(heights, widths, strict=True)]
    assert found == shapes + [(0, 0)] * (16 - len(shapes))


@pytest.mark.parametrize(("c_in", "c_out"), [(1, 1), (18, 33), (100, 32)])
def test_panels_for_tiles_are_padded_with_zeros(c_in: int, c_out: int) -> None:
    panels = block_for(9, c_in, c_out).panels
    weight = torch.randn(c_out, 9, c_in).bfloat16()
    found = pack(panels, weight).reshape(9, panels.panels, panels.padded_c_in // 2, panels.tile_n, 2)
    assert panels.padded_c_in % panels.tile_k == 0 and panels.padded_c_in >= c_in
    whole = np.zeros((9, panels.panels * panels.tile_n, panels.padded_c_in), np.uint16)
    whole[:, :c_out, :c_in] = bits_of(weight).transpose(1, 0, 2)
    whole = whole.reshape(9, panels.panels, panels.tile_n, panels.padded_c_in // 2, 2).transpose(0, 1, 3, 2, 4)
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize(("c_in", "products"), [(16, 2), (32, 2), (64, 4), (128, 6), (256, 6)])
@needs_objdump
def test_instructions(c_in: int, products: int, tmp_path: pathlib.Path) -> None:
    """Whole blocks of 32 columns; the longer rows have blocks of 32 and of 16 rows. Registers are given back once."""
    code = sc.compile_conv(3, c_in, 64, dtype="bf16", target=AMX.name).object
    worker = re.search(r"<gemm_\w+_worker>:\n(.*?)(?:\n\n|\Z)", run_objdump("-d", code, tmp_path), re.DOTALL)
    assert worker is not None
    names = [match[1] for match in re.finditer(r"^\s*[0-9a-f]+:\s+(\w+)", worker[1], re.MULTILINE)]
    assert names.count("tdpbf16ps") == products
    assert names.count("ldtilecfg") == names.count("tilerelease") == 1
    first, last = names.index("ldtilecfg"), names.index("tilerelease")
    tiles = [place for place, name in enumerate(names) if name.startswith("t") and "tile" in name or name[:3] == "tdp"]
    assert first < min(tiles) and max(tiles) == last and "ret" not in names[first:last]
    assert "vfmadd231ps" not in names and "vdpbf16ps" not in names


@needs_objdump
def test_other_dtypes_have_no_tiles(tmp_path: pathlib.Path) -> None:
    for dtype in ("f32", "f16"):
        listing = run_objdump("-d", sc.compile_conv(3, 16, 16, dtype=dtype, target=AMX.name).object, tmp_path)
        assert "ldtilecfg" not in listing and "vfmadd231ps" in listing
