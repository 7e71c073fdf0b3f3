"""The CPU kernels that make pairs, one by one, against numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest
from cpu_harness import Kernel, kernel_of, kinds

from spconv_compiler import reference
from spconv_compiler.passes.cpu.chunk_pairs import ChunkPairs, compaction_permutations
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.half_table import TABLE_PADDING, Geometry, HalfTable, runs_at_once
from spconv_compiler.passes.cpu.host_functions import define_host_functions
from spconv_compiler.passes.cpu.sorted_keys import KEY_PADDING, Packing, SortedKeys

CHUNK_ROWS = 64
Ints = npt.NDArray[np.integer]


@dataclasses.dataclass
class Sorted:
    """What the sort kernel left, and the box that it packed by."""

    keys: Ints
    origin: Ints
    status: Ints
    extent: tuple[int, int, int]


@dataclasses.dataclass
class Mapper:
    """The three kernels of one geometry."""

    geometry: Geometry
    sort: Kernel
    table: Kernel
    pairs: Kernel

    def sorted(self, coords: Ints, order: Ints | None = None, threads: int = 1) -> Sorted:
        halo = [k // 2 * d for k, d in zip(self.geometry.kernel_size, self.geometry.dilation, strict=True)]
        low = coords[:, 1:].min(axis=0) - halo
        extent = coords[:, 1:].max(axis=0) + halo - low + 1
        rows, kind = len(coords), np.int32 if self.geometry.key_width == 32 else np.int64
        keys, spare = (np.full(rows + KEY_PADDING, -7, kind) for _ in range(2))
        origin, origin_spare = (np.full(rows, -7, np.int32) for _ in range(2))
        status = np.full(8, -7, np.int64)
        box = [*map(int, low), *map(int, extent), int(coords[:, 0].max()) + 1]
        address = 0 if order is None else order.ctypes.data
        assert self.sort(coords, keys, origin, spare, origin_spare, status, rows, address, threads, *box) == 0
        return Sorted(keys, origin, status, (int(extent[0]), int(extent[1]), int(extent[2])))

    def run(self, coords: Ints, capacity: int, threads: int = 1) -> tuple[int, Sorted, list[Ints]]:
        """(what the pairs kernel returned, the sorted keys, [pairs, chunk_first, tap_first])."""
        done, rows, taps = self.sorted(coords), len(coords), self.geometry.taps
        table = np.full(rows * self.geometry.table_rows + TABLE_PADDING, -1, np.int32)
        box = done.extent[1], done.extent[2]
        assert self.table(done.keys, table, rows, *box, threads) == 0
        chunks = -(-rows // CHUNK_ROWS)
        pairs, first = np.full(capacity + 1, -7, np.int64), np.full(chunks, -7, np.int64)
        starts = np.full((chunks, taps + 1), -7, np.int32)
        scratch = np.zeros((threads, 2 * (taps * CHUNK_ROWS + 8)), np.int32)
        buffers = [done.keys, done.origin, table, pairs, first, starts, done.status, scratch]
        result = self.pairs(*buffers, rows, *box, capacity, threads)
        assert pairs[capacity] == -7
        return result, done, [pairs, first, starts]


def mapper(kernel_size: tuple[int, int, int], dilation: tuple[int, int, int], key_width: int) -> Mapper:
    geometry = Geometry(kernel_size, dilation, key_width)

    def define(functions: Functions) -> None:
        functions.kernel("sort", kinds("p" * 6 + "n" * 10), SortedKeys(functions, "sort", Packing(key_width)))
        functions.kernel("table", kinds("ppnnnn"), HalfTable(functions, "table", geometry))
        functions.kernel("pairs", kinds("p" * 8 + "n" * 5), ChunkPairs(functions, "pairs", geometry, CHUNK_ROWS))

    module = kernel_of(define, "sort").module
    return Mapper(geometry, Kernel(module, "sort"), Kernel(module, "table"), Kernel(module, "pairs"))


@pytest.fixture(scope="module", params=[32, 64])
def cube(request: pytest.FixtureRequest) -> Mapper:
    return mapper((3, 3, 3), (1, 1, 1), request.param)


def voxels(rows: int, span: tuple[int, int, int], seed: int = 0, batches: int = 2) -> Ints:
    """Distinct coordinates int32 [≤ rows, 4], in random order, some negative."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, batches, 2 * rows), *(rng.integers(-n // 2, n // 2 + 1, 2 * rows) for n in span)]
    coords = np.unique(np.stack(columns, axis=1), axis=0)
    return np.ascontiguousarray(rng.permutation(coords)[:rows].astype(np.int32))


def expected_pairs(coords: Ints, geometry: Geometry, origin: Ints) -> set[tuple[int, int, int]]:
    """(tap, input row, place of the output row among sorted keys)."""
    table = reference.kernel_map(coords, geometry.kernel_size, geometry.dilation)[origin]
    place, tap = np.nonzero(table >= 0)
    return {(int(t), int(table[p, t]), int(p)) for p, t in zip(place, tap, strict=True)}


def check_pairs(coords: Ints, mapping: Mapper, threads: int = 1) -> None:
    capacity = len(coords) * mapping.geometry.taps
    result, done, (pairs, first, starts) = mapping.run(coords, capacity, threads)
    assert result == 0
    found = []
    for chunk, begin in enumerate(first):
        assert starts[chunk, 0] == 0
        for tap in range(mapping.geometry.taps):
            words = pairs[begin + starts[chunk, tap] : begin + starts[chunk, tap + 1]]
            places = chunk * CHUNK_ROWS + (words >> 32)
            assert (np.diff(places) > 0).all()
            found += [(tap, int(word & 0xFFFFFFFF), int(place)) for word, place in zip(words, places, strict=True)]
    assert len(found) == done.status[3]
    assert len(set(found)) == len(found)
    assert set(found) == expected_pairs(coords, mapping.geometry, done.origin)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 64, 65, 3000])
@pytest.mark.parametrize("span", [(1, 1, 1), (3, 60, 60), (900, 900, 900), (0, 0, 4000)])
def test_keys_are_sorted_with_their_rows(cube: Mapper, rows: int, span: tuple[int, int, int]) -> None:
    coords = voxels(rows, span)
    done, rows = cube.sorted(coords), len(coords)
    order = np.lexsort(coords.T[::-1])
    np.testing.assert_array_equal(done.origin, order)
    keys = done.keys[:rows].astype(np.int64)
    low = coords[:, 1:].min(axis=0) - 1
    wanted = coords[order, 0].astype(np.int64)
    for axis in range(3):
        wanted = wanted * done.extent[axis] + coords[order, axis + 1] - low[axis]
    np.testing.assert_array_equal(keys, wanted)
    assert (done.keys[rows:] == np.iinfo(done.keys.dtype).max).all()
    assert done.status[0] == 0


@pytest.mark.parametrize("rows", [1000, 1001])
def test_keys_in_order_are_left_in_order(cube: Mapper, rows: int) -> None:
    coords = voxels(rows, (40, 40, 40))
    coords = np.ascontiguousarray(coords[np.lexsort(coords.T[::-1])])
    np.testing.assert_array_equal(cube.sorted(coords).origin, np.arange(rows))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_order_that_is_known_is_used_and_checked(cube: Mapper, threads: int) -> None:
    """A right order is taken as it is; any other permutation is only where the sort starts from."""
    coords = voxels(150_000, (60, 200, 200))
    right = np.lexsort(coords.T[::-1]).astype(np.int32)
    plain = cube.sorted(coords, threads=threads)
    for order in (right, right[::-1].copy(), np.random.default_rng(1).permutation(right)):
        done = cube.sorted(coords, order, threads)
        assert done.status[0] == 0
        np.testing.assert_array_equal(done.origin, right)
        np.testing.assert_array_equal(done.keys, plain.keys)


def test_one_row_out_of_place_at_any_seam_of_the_spans(cube: Mapper) -> None:
    """Workers pack spans of 8192 rows: a descent between two of them is a descent."""
    coords = voxels(20_000, (40, 80, 80))
    coords = np.ascontiguousarray(coords[np.lexsort(coords.T[::-1])])
    for row in (1, 8191, 8192, 16384, len(coords) - 1):
        swapped = coords.copy()
        swapped[[row - 1, row]] = coords[[row, row - 1]]
        expected = np.arange(len(coords))
        expected[[row - 1, row]] = row, row - 1
        np.testing.assert_array_equal(cube.sorted(swapped).origin, expected)
        swapped[row - 1] = swapped[row]
        assert cube.sorted(swapped).status[:3].tolist() == [1, row - 1, row]


def test_the_lowest_row_that_repeats_another_is_named(cube: Mapper) -> None:
    coords = voxels(500, (30, 30, 30))
    coords[[170, 420, 90, 33]] = coords[[41, 41, 200, 300]]
    done = cube.sorted(coords)
    # Row 200 repeats row 90, row 300 row 33, rows 170 and 420 row 41.
    assert done.status[:3].tolist() == [4, 41, 170]


def test_duplicates_give_no_pairs(cube: Mapper) -> None:
    coords = np.repeat(voxels(40, (4, 4, 4)), 30, axis=0)
    result, done, (pairs, _, _) = cube.run(coords, 100)
    assert (result, done.status[0], done.status[3]) == (0, len(coords) - 40, 0)
    assert (pairs == -7).all()


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 2500])
@pytest.mark.parametrize("span", [(3, 20, 20), (8, 8, 8), (2, 3000, 3000), (0, 0, 5000), (500, 500, 500)])
def test_pairs_are_those_of_the_reference(cube: Mapper, rows: int, span: tuple[int, int, int]) -> None:
    check_pairs(voxels(rows, span), cube)


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize(
    ("kernel_size", "dilation"),
    [
        ((1, 1, 1), (1, 1, 1)),
        ((1, 1, 3), (1, 1, 1)),
        ((3, 1, 1), (1, 1, 1)),
        ((1, 3, 5), (1, 2, 1)),
        ((5, 5, 5), (1, 1, 1)),
        ((3, 3, 3), (2, 3, 4)),
        ((3, 3, 5), (1, 1, 20)),
        ((7, 3, 7), (1, 1, 1)),
    ],
)
def test_geometries(kernel_size: tuple[int, int, int], dilation: tuple[int, int, int], width: int) -> None:
    mapping = mapper(kernel_size, dilation, width)
    check_pairs(voxels(1500, (9, 20, 30)), mapping)
    check_pairs(voxels(1500, (1, 1, 900)), mapping)


def test_a_sparse_line_beside_a_dense_one(cube: Mapper) -> None:
    """A search has to skip hundreds of keys between two rows, over many vectors."""
    dense = np.array([[0, 0, 0, x] for x in range(1500)])
    sparse = np.array([[0, 0, 1, x] for x in (0, 700, 701, 1499)] + [[0, 1, 0, x] for x in (5, 1400)])
    check_pairs(np.concatenate([dense, sparse]).astype(np.int32), cube)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_find_the_same_pairs(cube: Mapper, threads: int) -> None:
    check_pairs(voxels(40_000, (20, 60, 60)), cube, threads)


@pytest.mark.parametrize("capacity", [0, 1, 500])
def test_too_many_pairs_are_counted_and_not_written_beyond_the_end(cube: Mapper, capacity: int) -> None:
    coords = voxels(700, (6, 6, 6))
    result, done, _ = cube.run(coords, capacity)
    assert result == done.status[3] == len(expected_pairs(coords, cube.geometry, done.origin))


def test_compaction_permutations() -> None:
    table = np.frombuffer(compaction_permutations(), np.uint8).reshape(256, 8)
    for mask, lanes in enumerate(table):
        present = np.nonzero([mask >> lane & 1 for lane in range(8)])[0]
        np.testing.assert_array_equal(lanes[: len(present)], present)


def test_entries_hold_any_row_that_they_promise_to() -> None:
    geometry = Geometry((3, 3, 3), (1, 1, 1), 32)
    assert geometry.most_rows << geometry.run < 2**32
    assert Geometry((7, 7, 7), (1, 1, 2), 32).most_rows >= 2**31 - 1


def test_searches_side_by_side_follow_the_number_of_runs() -> None:
    sizes = [(1, 1, 3), (3, 3, 3), (5, 5, 5), (7, 7, 7)]
    assert [runs_at_once(Geometry(size, (1, 1, 1), 32)) for size in sizes] == [1, 5, 2, 2]


@pytest.fixture(scope="module")
def host_functions() -> Kernel:
    return kernel_of(define_host_functions, "fingerprint")


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_bounds(host_functions: Kernel, rows: int) -> None:
    coords = np.random.default_rng(rows).integers(-(2**31), 2**31, (rows, 4)).astype(np.int32)
    out = np.zeros(8, np.int32)
    Kernel(host_functions.module, "coords_bounds")(coords, rows, out)
    np.testing.assert_array_equal(out, [*coords.min(axis=0), *coords.max(axis=0)])


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 1003])
def test_one_look_gives_bounds_and_the_fingerprint(host_functions: Kernel, rows: int) -> None:
    """With the least and the greatest value of every column in every place of what is read at once, and behind it."""
    coords, seen = np.zeros((rows, 4), np.int32), Kernel(host_functions.module, "coords_seen")
    for place in range(min(rows, 20)):
        row = rows - 1 - place
        for low, high in ((-7 - place, 0), (0, 9 + place), (-(2**31), 2**31 - 1)):
            out = np.zeros(8, np.int32)
            coords[row] = [low, high, low, high]
            assert seen(coords, rows, out) == host_functions(coords, coords.nbytes)
            np.testing.assert_array_equal(out, [*coords.min(axis=0), *coords.max(axis=0)])
        coords[row] = 0


@pytest.mark.parametrize("size", [0, 1, 3, 127, 128, 129, 1000])
def test_fingerprints_notice_one_bit(host_functions: Kernel, size: int) -> None:
    memory = np.random.default_rng(size).integers(0, 256, size + 1).astype(np.uint8)
    whole = host_functions(memory, size)
    assert whole == host_functions(memory.copy(), size) != host_functions(memory, size + 1)
    for bit in range(8 * size):
        memory[bit // 8] ^= 1 << bit % 8
        assert host_functions(memory, size) != whole
        memory[bit // 8] ^= 1 << bit % 8


def test_fingerprints_notice_changed_signs_and_moved_rows(host_functions: Kernel) -> None:
    values = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)
    prints = {host_functions(values, values.nbytes), host_functions(-values, values.nbytes)}
    for lane in range(0, 64, 7):
        changed = values.copy()
        changed[3, lane] *= -1
        changed[9, lane] *= -1
        prints.add(host_functions(changed, values.nbytes))
    prints.add(host_functions(np.ascontiguousarray(np.roll(values, 1, axis=0)), values.nbytes))
    assert len(prints) == 13
