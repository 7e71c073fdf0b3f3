"""Laws of submanifold convolution, bit for bit: order of rows, batches, translation, sizes, threads, repetition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from conv_cases import Case, make_case, mismatch, voxels
from hypothesis import example, given, settings
from hypothesis import strategies as st

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler.arrays import as_array
from spconv_compiler.compiler import conv_options

C_IN, C_OUT = 8, 16
DTYPES = ("f32", "bf16")

sizes = st.integers(1, 700)
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES)
relaxed = settings(deadline=None, max_examples=25)


def case_of(n: int, seed: int, dtype: str, *, batches: int = 1) -> Case:
    """n voxels, about a third of the box occupied, so that rows have several neighbours."""
    side = max(2, round((3 * n) ** (1 / 3)))
    return make_case(voxels(n, side, batches=batches, seed=seed), 3, C_IN, C_OUT, dtype=dtype, seed=seed)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    """Compiles before the first law is timed."""
    for dtype in DTYPES:
        case_of(10, 0, dtype).run()
    yield


@relaxed
@given(sizes, seeds, dtypes)
def test_permuted_rows_give_permuted_results(n: int, seed: int, dtype: str) -> None:
    case = case_of(n, seed, dtype)
    order = np.random.default_rng(seed).permutation(n)
    permuted = dataclasses.replace(case, coords=case.coords[order], features=case.features[order])
    assert torch.equal(permuted.run(), case.run()[order])


@relaxed
@given(st.integers(2, 300), st.integers(2, 4), seeds, dtypes)
def test_a_batch_alone_gives_what_it_gives_among_others(n: int, batches: int, seed: int, dtype: str) -> None:
    case = case_of(n, seed, dtype, batches=batches)
    whole = case.run()
    for batch in range(batches):
        rows = np.flatnonzero(case.coords[:, 0] == batch)
        alone = dataclasses.replace(case, coords=case.coords[rows], features=case.features[rows])
        assert torch.equal(alone.run(), whole[rows])
        alone.coords[:, 0] = 0
        assert torch.equal(alone.run(), whole[rows]), "whatever its number"


@relaxed
@given(sizes, seeds, dtypes, st.tuples(*[st.integers(-(2**31), 2**31 - 20)] * 3))
@example(100, 0, "f32", (-(2**31), 2**31 - 20, -1))
def test_translation_changes_nothing(n: int, seed: int, dtype: str, step: tuple[int, int, int]) -> None:
    case = case_of(n, seed, dtype)
    moved = dataclasses.replace(case, coords=(case.coords + np.array([0, *step])).astype(np.int32))
    assert torch.equal(moved.run(), case.run())


@relaxed
@given(sizes, seeds, dtypes)
def test_far_voxels_change_nothing(n: int, seed: int, dtype: str) -> None:
    """Another cloud out of reach, which also makes the keys 64 bits wide."""
    case = case_of(n, seed, dtype)
    far = (case.coords + np.array([0, 2**20, 2**20, 0])).astype(np.int32)
    both = dataclasses.replace(
        case, coords=np.concatenate([far, case.coords]), features=np.concatenate([case.features] * 2)
    )
    assert torch.equal(both.run(), torch.cat([case.run()] * 2))


@relaxed
@given(sizes, seeds)
def test_linear_in_the_features(n: int, seed: int) -> None:
    """With whole numbers sums are exact, so that linearity is too."""
    coords = case_of(n, seed, "f32").coords
    a, b = (make_case(coords, 3, C_IN, C_OUT, whole=True, seed=seed + k) for k in (0, 1))
    b = dataclasses.replace(b, weight=a.weight)
    mixed = dataclasses.replace(a, features=2 * a.features - b.features)
    assert torch.equal(mixed.run(), 2 * a.run() - b.run())


@relaxed
@given(sizes, seeds)
def test_mirrored_coordinates_and_taps(n: int, seed: int) -> None:
    """Turning space around turns the taps around: what swaps two axes or reverses one by mistake is seen."""
    case = make_case(case_of(n, seed, "f32").coords, 3, C_IN, C_OUT, whole=True, seed=seed)
    turned = dataclasses.replace(
        case, coords=case.coords * np.int32([1, -1, -1, -1]), weight=case.weight[:, ::-1, ::-1, ::-1]
    )
    assert torch.equal(turned.run(), case.run())
    weight = case.weight.transpose(0, 3, 1, 2, 4)
    swapped = dataclasses.replace(case, coords=case.coords[:, [0, 3, 1, 2]], weight=weight)
    assert torch.equal(swapped.run(), case.run())


# Around the rows of a register tile, of a chunk, of a vector.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 15, 16, 17, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025])
def test_sizes(n: int, dtype: str) -> None:
    case = case_of(n, n, dtype)
    out = case.run()
    assert out.shape == (n, C_OUT)
    assert mismatch(out, case, whole=False) is None
    counted = make_case(case.coords, 3, C_IN, C_OUT, dtype=dtype, whole=True)
    assert mismatch(counted.run(), counted, whole=True) is None


@pytest.mark.parametrize("kernel", [1, 5])
def test_no_voxels_at_all(kernel: int) -> None:
    weight = torch.ones(4, kernel, kernel, kernel, 3)
    for coords in (torch.zeros((0, 4), dtype=torch.int32), torch.zeros((0, 3), dtype=torch.int64)):
        out = sc.subm_conv3d(coords, torch.zeros(0, 3), weight, torch.ones(4), spatial_shape=(41, 1600, 1408))
        assert (out.shape, out.dtype) == ((0, 4), torch.float32)
    out = sc.subm_conv3d(np.zeros((0, 4), np.int32), np.zeros((0, 3), np.float32), weight, out_dtype="f16")
    assert (out.shape, out.dtype) == ((0, 4), np.float16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_neighbours(dtype: str) -> None:
    """Every voxel alone: the convolution is a product with the middle tap."""
    case = make_case(voxels(300, 10) * np.int32([1, 2, 2, 2]), 3, C_IN, C_OUT, dtype=dtype, whole=True)
    middle = case.features @ case.weight[:, 1, 1, 1].T
    np.testing.assert_array_equal(case.run().float().numpy(), reference.round_to(middle, dtype))


def large_case(dtype: str) -> Case:
    """Large enough that several threads are worth it: 20 000 rows, 64 channels."""
    return make_case(voxels(20_000, 40), 3, 64, 64, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_repetition_change_no_bit(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = large_case(dtype)
    coords, features, weight, _ = case.tensors()
    before, outs = torch.get_num_threads(), []
    kernel, points = sc.load_conv(conv_options(3, 64, 64, dtype=dtype)), as_array(coords, "coords")
    try:
        torch.set_num_threads(8)
        for threads in (1, 2, 3, 8, 1, 8):
            monkeypatch.setenv("SPCONV_NUM_THREADS", str(threads))
            # Map, packed weights and result are all made anew with this number of threads.
            map_, packed = kernel.build_map(points, kernel.box(points)), kernel.pack(as_array(weight, "weight"))
            assert map_.symbols["threads"] == threads
            for _ in range(2):
                out = torch.empty(len(coords), 64, dtype=weight.dtype)
                kernel.run(map_, packed, as_array(features, "features"), out.data_ptr())
                outs.append(out)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(out, outs[0]) for out in outs[1:])
    assert mismatch(outs[0], case, whole=False) is None


def test_torch_limits_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from spconv_compiler.driver import thread_count

    before = torch.get_num_threads()
    monkeypatch.setenv("SPCONV_NUM_THREADS", "6")
    try:
        found = []
        for threads in (1, 4, 8):
            torch.set_num_threads(threads)
            found.append(thread_count())
    finally:
        torch.set_num_threads(before)
    assert found == [1, 4, 6]
