"""Schedules that own their output rows, on the simulator: exact on whole numbers, the same bits in every order."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from conv_cases import Case, make_case, voxels
from gemm_cases import check, compiled, naming, result, run

from spconv_compiler import reference
from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS, FIRST_TILE_BIT, KEY_BITS, TAP_MASK, key_bits
from spconv_compiler.plan import evaluate
from spconv_compiler.schedules.deal import Deal
from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import Fault

SCHEDULES = ("output_stationary", "split_taps")
SMALL = "small_channels"


CHANNELS = [(1, 3), (3, 16), (5, 33), (18, 5), (33, 18), (64, 96), (96, 64), (100, 40), (128, 256), (512, 128)]
SMALL_CHANNELS = [(1, 3), (3, 16), (5, 33), (8, 64), (16, 256)]
FAST = {
    ("bf16", (33, 18), "output_stationary"),
    ("f16", (18, 5), "split_taps"),
    ("f32", (64, 96), "output_stationary"),
    ("bf16", (5, 33), SMALL),
    ("f32", (3, 16), SMALL),
}
EVERY = [
    (dtype, pair, schedule)
    for schedule, pairs in ((SCHEDULES[0], CHANNELS), (SCHEDULES[1], CHANNELS), (SMALL, SMALL_CHANNELS))
    for dtype in ("bf16", "f16", "f32")
    for pair in pairs
]


@pytest.mark.parametrize(
    ("dtype", "channels", "schedule"),
    [pytest.param(*one, marks=() if one in FAST else pytest.mark.slow) for one in EVERY],
    ids=str,
)
def test_channels(dtype: str, channels: tuple[int, int], schedule: str) -> None:
    coords = voxels(300, 8, seed=1) - np.array([0, 3, 5, 4], np.int32)
    check(make_case(coords, 3, *channels, dtype=dtype, whole=True), schedule=schedule)


@pytest.mark.parametrize("schedule", ["output_stationary", SMALL])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 255, 256, 257, 513, 1100])
def test_rows_around_tiles_and_blocks(rows: int, schedule: str) -> None:
    check(make_case(voxels(rows, 14, seed=rows), 3, 16, 16, dtype="bf16", whole=True), schedule=schedule)


@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        ({"dtype": "bf16", "activation": "relu", "dilation": 2}, "output_stationary"),
        ({"dtype": "bf16", "activation": "relu", "dilation": 2}, "split_taps"),
        ({"dtype": "f16", "out_dtype": "f32"}, SMALL),
    ],
    ids=str,
)
def test_epilogue_is_fused(options: dict[str, Any], schedule: str) -> None:
    c_in = 16 if schedule == SMALL else 24
    case = make_case(voxels(290, 8, batches=2), 3, c_in, 20, dtype=options["dtype"], bias=True, whole=True)
    others = {name: value for name, value in options.items() if name != "dtype"}
    found = check(case, schedule=schedule, **others)
    kernels = [name for name, _ in found.launches]
    assert len([name for name in kernels if name.startswith(("fill_rows", "apply_"))]) == 0
    assert sum(name.startswith("gemm_") for name in kernels) == 1


def test_five_taps_a_side_share_bits_of_the_key() -> None:
    check(make_case(voxels(400, 10), 5, 16, 16, dtype="bf16", whole=True), schedule="output_stationary")


def test_rows_that_would_share_a_word_are_ended_apart() -> None:
    """With an odd number of 16-bit channels two waves would write one word: the sums are rounded by another kernel."""
    case = make_case(voxels(300, 8), 3, 16, 3, dtype="bf16", bias=True, whole=True)
    kernels = [name for name, _ in check(case, schedule="output_stationary", activation="relu").launches]
    assert [name for name in kernels if name.startswith("add_parts_1x3")]


@pytest.mark.parametrize("schedule", ["output_stationary", SMALL])
def test_weights_that_name_their_tap_and_channels(schedule: str) -> None:
    """Every weight is another number, and features pick out one channel: a wrong tap, lane or row shows."""
    c_in, c_out = 16, 16
    coords = voxels(200, 7, seed=3)
    weight = np.arange(27 * c_in * c_out, dtype=np.float32).reshape(c_out, 3, 3, 3, c_in)
    features = np.zeros((len(coords), c_in), np.float32)
    features[np.arange(len(coords)), np.arange(len(coords)) % c_in] = 1.0
    check(Case(coords, features, weight, None, "f32", {}), schedule=schedule)


# Bytes of a row: one load and less, two; three and five, where the place in the loop tells the stage, and three and
# nine, where a branch does.
LAST_LOADS = [(2, bytes_) for bytes_ in (34, 48, 64, 80, 130, 160, 192, 320, 544)]
LAST_LOADS += [(4, bytes_) for bytes_ in (36, 48, 64, 80, 132, 160, 192, 320, 544)]
NAMED = [(dtype, bytes_ // size) for size, bytes_ in LAST_LOADS for dtype in {2: ("bf16", "f16"), 4: ("f32",)}[size]]


@pytest.mark.parametrize(
    ("dtype", "c_in"),
    [
        pytest.param(dtype, c_in, marks=() if dtype == "bf16" else pytest.mark.slow, id=f"{dtype}-{c_in}")
        for dtype, c_in in NAMED
    ],
)
@pytest.mark.parametrize(
    "schedule", [SCHEDULES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in (SCHEDULES[1], "pair_major"))]
)
def test_every_load_of_a_row_is_multiplied(schedule: str, dtype: str, c_in: int) -> None:
    check(naming(c_in, 20, dtype), schedule=schedule, out_dtype="f32")


@pytest.mark.parametrize(("c_in", "loads"), [(17, 1), (32, 1), (40, 2), (96, 3), (288, 9)])
def test_nothing_behind_the_last_load_is_packed_or_multiplied(c_in: int, loads: int) -> None:
    """A tile of 16 rows multiplies the taps that it has by as much of K as rows have; weights are as long."""
    case = naming(c_in, 48, "bf16")
    artifact = compiled(3, c_in, 48, dtype="bf16", bias=False, out_dtype="f32", schedule="output_stationary")
    found = run(artifact, case)
    slice_ = 32 if c_in % 2 else 48
    assert found.buffers["packed"].size == 27 * loads * 32 * 2 * -(-48 // slice_) * slice_
    order, table = found.array("row_order", "i32"), reference.kernel_map(case.coords, (3, 3, 3), 1)
    present = np.zeros((len(order), 27), bool)
    present[: len(case.coords)] = table[order[: len(case.coords)]] >= 0
    products = present.reshape(-1, TILE_ROWS, 27).any(axis=1).sum() * loads * -(-48 // slice_) * slice_ // 16
    name, counts = found.launches[-1]
    kernel = CodeObject(artifact.object).kernels[name]
    matrix = [one.address for one in decode(kernel.code, kernel.address) if one.name.startswith("v_mfma")]
    assert sum(counts.by_address.get(address, 0) for address in matrix) == products


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("c_in", [40, 96])
def test_any_order_of_workgroups_gives_the_same_bits(schedule: str, c_in: int) -> None:
    case = make_case(voxels(900, 11, seed=5), 3, c_in, 24, dtype="bf16", whole=False)
    artifact = compiled(3, c_in, 24, dtype="bf16", out_dtype="f32", schedule=schedule)
    wanted = result(run(artifact, case), artifact, case)
    for seed in range(1, 4):
        np.testing.assert_array_equal(result(run(artifact, case, seed), artifact, case), wanted)
    table = reference.kernel_map(case.coords, (3, 3, 3), 1)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, None, 1)
    bound = reference.error_bound(case.features, case.weight, table, "f32", None)
    assert reference.compare(wanted, exact, bound).ok


def test_permuted_rows_give_permuted_results_bit_by_bit() -> None:
    case = make_case(voxels(600, 10, seed=6), 3, 40, 24, dtype="bf16", whole=False)
    artifact = compiled(3, 40, 24, dtype="bf16", out_dtype="f32", schedule="output_stationary")
    order = np.random.default_rng(0).permutation(len(case.coords))
    mixed = Case(case.coords[order], case.features[order], case.weight, None, "bf16", {})
    wanted = result(run(artifact, case), artifact, case)
    np.testing.assert_array_equal(result(run(artifact, mixed), artifact, mixed), wanted[order])


def test_many_terms_are_summed_in_f32() -> None:
    """2,700 products of 1e-2 by 1: in f16 the sum would stop growing."""
    coords = np.stack(np.meshgrid([0], *[range(5)] * 3, indexing="ij"), axis=-1).reshape(-1, 4).astype(np.int32)
    features = np.full((len(coords), 100), np.float16(1e-2), np.float32)
    case = Case(coords, features, np.ones((16, 3, 3, 3, 100), np.float32), None, "f16", {})
    artifact = compiled(3, 100, 16, dtype="f16", out_dtype="f32", schedule="output_stationary")
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, None, 1)
    assert exact.max() > 26
    np.testing.assert_allclose(result(run(artifact, case), artifact, case), exact, rtol=1e-6)


def test_what_the_gemm_reads_of_the_sorted_rows() -> None:
    coords = voxels(1100, 12, seed=7)
    case = make_case(coords, 3, 16, 16, dtype="bf16", whole=True)
    found = check(case, schedule="output_stationary")
    table = reference.kernel_map(coords, (3, 3, 3), 1)
    blocks = -(-len(coords) // BLOCK_ROWS)
    order = found.array("row_order", "i32")
    assert sorted(order[: len(coords)].tolist()) == list(range(len(coords))) and (order[len(coords) :] == -1).all()
    mine = np.full((blocks * BLOCK_ROWS, 27), -1)
    mine[: len(coords)] = table[order[: len(coords)]]
    sorted_table = found.array("sorted_table", "i32").reshape(-1, 27, TILE_ROWS).transpose(0, 2, 1).reshape(-1, 27)
    np.testing.assert_array_equal(sorted_table, mine)
    present = np.asarray((mine.reshape(blocks, -1, TILE_ROWS, 27) >= 0).any(axis=2))
    steps, counts = found.array("steps", "i32").view(np.uint32).reshape(blocks, 27), found.array("step_count", "i32")
    for block in range(blocks):
        taps = np.flatnonzero(present[block].any(axis=0))
        assert counts[block] == len(taps) and (steps[block, len(taps) :] == 0).all()
        np.testing.assert_array_equal(steps[block, : len(taps)] & TAP_MASK, taps)
        bits = (present[block][:, taps] << np.arange(BLOCK_ROWS // TILE_ROWS)[:, None]).sum(axis=0)
        np.testing.assert_array_equal(steps[block, : len(taps)] >> FIRST_TILE_BIT, bits)
    words, keys = np.array(key_bits((3, 3, 3)), np.int64), np.zeros(len(coords), np.int64)
    for tap in range(27):
        keys |= np.where(table[:, tap] >= 0, words[tap], 0)
    for shift in (1, 2, 4, 8, 16):
        keys ^= keys >> shift
    np.testing.assert_array_equal(order[: len(coords)], np.argsort(keys, kind="stable"))


def test_keys_tell_sides_then_columns_then_near_taps() -> None:
    words = key_bits((3, 3, 3))
    detail, columns = KEY_BITS - 10, ((1 << 8) - 1) << KEY_BITS - 10
    own = [word & (1 << detail) - 1 for word in words]
    # The centre has the lowest bit; what lies below in other columns has none, nor five far taps above.
    assert sorted(own) == [0] * 13 + [1 << bit for bit in range(detail)] and own[13] == 1
    without = [*(tap for tap in range(9) if tap != 4), 18, 20, 24, 25, 26]
    assert [tap for tap, word in enumerate(own) if not word] == without
    # Near taps come first, of those the two of the centre's column, which has no bit.
    assert sorted((own[4], own[22])) == [1 << detail - 2, 1 << detail - 1]
    assert sorted(own[tap] for tap in (10, 12, 14, 16)) == [1 << detail - 6 + bit for bit in range(4)]
    for tap, word in enumerate(words):
        z, column = tap // 9, tap % 9
        assert word >> KEY_BITS - 2 == (2, 0, 1)[z]
        assert word & columns == words[9 + column] & columns and bin(word & columns).count("1") == (column != 4)
    # Columns at corners come first.
    of_column = [word & columns for word in words[9:18]]
    assert min(of_column[corner] for corner in (0, 2, 6, 8)) > max(of_column[side] for side in (1, 3, 5, 7))
    many = key_bits((5, 5, 5))
    assert all(0 <= word < 1 << KEY_BITS for word in many)
    assert set.union(*({bit for bit in range(KEY_BITS) if word >> bit & 1} for word in many)) == set(range(KEY_BITS))
    # In a column of five several may be unknown: each has a bit, if not its own.
    assert all(word & (1 << detail) - 1 for word in many)
    near, centre = 1 << detail - 1, 1
    assert key_bits((1, 1, 3)) == [1 << detail | near, centre, 1 << detail + 1 | near >> 1]


@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 47, 48, 624, 1657, 2024, 5908, 100_000])
def test_shares_of_tiles_are_even_and_fill_the_chip(tiles: int) -> None:
    deal = Deal.over(256, 8, 1, 16, 3)
    assert deal.turns == (208, 256)
    count = deal.count(tiles)
    sizes = [tiles // count + (number < tiles % count) for number in range(count)]
    assert sum(sizes) == tiles and min(sizes) >= 1 and max(sizes) <= 16
    if tiles >= 624:
        turns = -(-count // 256)
        assert count >= 0.8 * 256 * turns and count <= -(-tiles // 16) * 1.25 + 208
    launch = compiled(3, 16, 16, dtype="bf16", schedule="output_stationary").plan.launches[-1]
    # Workgroups come in whole turns of the eight chiplets.
    assert evaluate(launch.grid[0], {"rows": tiles * 16}) == -(-count // 8) * 8


def test_shares_with_several_tiles_for_a_wave() -> None:
    """Eight slices of columns leave 32 shares to fill the chip: thirteen tiles each, that begin anywhere in a block."""
    case = make_case(voxels(6600, 26, seed=8), 3, 16, 1024, dtype="bf16", whole=True)
    found = check(case, schedule="output_stationary", out_dtype="f32")
    name, counts = found.launches[-1]
    assert name.startswith("gemm_output_stationary") and counts.instructions > 0


@pytest.mark.parametrize(
    ("kernel", "old", "new"),
    [
        ("arrange", "s_barrier", "s_nop 0"),
        ("gemm", "s_barrier", "s_nop 0"),
    ],
)
def test_a_missing_barrier_is_noticed(kernel: str, old: str, new: str) -> None:
    from sim_kernels import encode

    case = make_case(voxels(1300, 12), 3, 64, 64, dtype="bf16", whole=True)
    artifact = compiled(3, 64, 64, dtype="bf16", schedule="output_stationary")
    kernels = dict(CodeObject(artifact.object).kernels)
    name = next(name for name in kernels if name.startswith(kernel))
    assert kernels[name].code.count(encode(old)) >= 1
    kernels[name] = dataclasses.replace(kernels[name], code=kernels[name].code.replace(encode(old), encode(new)))
    with pytest.raises(Fault):
        run(artifact, case, kernels=kernels)
