"""Maps are kept with the coordinate tensor: reused while it is unchanged, never beyond, gone when it is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import make_case, mismatch, voxels

import spconv_compiler as sc
from spconv_compiler import api, reference
from spconv_compiler.driver import ConvKernel, KernelMap
from spconv_compiler.tensor_cache import TensorCache

C_IN, C_OUT = 4, 8
WEIGHT = torch.from_numpy(make_case(voxels(1, 1), 3, C_IN, C_OUT, whole=True, seed=5).weight)


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    sc.clear_caches()
    yield
    sc.clear_caches()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[KernelMap]:
    """The maps that are built from here on."""
    maps: list[KernelMap] = []
    build = ConvKernel.build_map

    def counted(*arguments: Any) -> KernelMap:
        maps.append(build(*arguments))
        return maps[-1]

    monkeypatch.setattr(ConvKernel, "build_map", counted)
    return maps


def features_for(coords: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(coords))
    return torch.randint(-3, 4, (len(coords), C_IN), generator=generator).float()


def convolve(coords: Any, weight: torch.Tensor = WEIGHT, **options: Any) -> torch.Tensor:
    out = sc.subm_conv3d(coords, features_for(coords), weight, **options)
    assert isinstance(out, torch.Tensor)
    return out


def check(coords: Any) -> None:
    """The convolution of what the coordinates are now."""
    now = reference.to_numpy(coords).copy()
    case = make_case(now if now.shape[1] == 4 else np.insert(now, 0, 0, 1), 3, C_IN, C_OUT)
    case.features[:], case.weight[:] = features_for(coords).numpy(), WEIGHT.numpy()
    problem = mismatch(convolve(coords), case, whole=True)
    assert problem is None, problem


def tensor(n: int = 200, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(voxels(n, 9, seed=seed))


def test_one_map_for_many_layers(built: list[KernelMap]) -> None:
    """Layers of any width and dtype over one geometry share a map; another geometry has its own."""
    coords = tensor()
    for c_in, c_out, dtype in [(4, 8, torch.float32), (4, 16, torch.float32), (4, 8, torch.bfloat16)]:
        sc.subm_conv3d(coords, torch.ones(200, c_in, dtype=dtype), torch.ones(c_out, 3, 3, 3, c_in, dtype=dtype))
    assert len(built) == 1
    convolve(coords, dilation=2)
    convolve(coords, torch.ones(C_OUT, 1, 3, 3, C_IN))
    assert len(built) == 3
    assert len(api._coords_cache) == 1


def test_explicit_limits_do_not_part_maps(built: list[KernelMap]) -> None:
    coords = tensor()
    convolve(coords)
    convolve(coords, spatial_shape=(9, 9, 9))
    convolve(coords, spatial_shape=(50, 50, 50), batch_size=3)
    assert len(built) == 1


def in_place(coords: torch.Tensor) -> None:
    coords[7, 3] += 1000


def through_data(coords: torch.Tensor) -> None:
    coords.data[7, 3] += 1000


def through_numpy(coords: torch.Tensor) -> None:
    coords.numpy()[7, 3] += 1000


def through_a_view(coords: torch.Tensor) -> None:
    coords[5:10][2, 3] += 1000


def by_new_storage(coords: torch.Tensor) -> None:
    coords.data = coords.flip(0)


def by_swapping_rows(coords: torch.Tensor) -> None:
    coords.numpy()[[3, 150]] = coords.numpy()[[150, 3]]


CHANGES = [in_place, through_data, through_numpy, through_a_view, by_new_storage, by_swapping_rows]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_coordinates_are_noticed(change: Callable[[torch.Tensor], None], built: list[KernelMap]) -> None:
    coords = tensor()
    check(coords)
    before, old = convolve(coords), coords.clone()
    change(coords)
    assert not torch.equal(old, coords)
    check(coords)
    assert not torch.equal(convolve(coords), before)
    assert (len(built), len(api._coords_cache)) == (2, 1), "the old map is not kept"


def test_changed_numpy_coordinates_are_noticed(built: list[KernelMap]) -> None:
    coords = tensor().numpy()
    check(coords)
    coords[7, 3] += 1000
    check(coords)
    assert len(built) == 2


def test_int64_coordinates_are_watched_themselves(built: list[KernelMap]) -> None:
    coords = tensor().long()
    check(coords)
    check(coords)
    assert len(built) == 1
    coords.numpy()[7, 3] += 1000
    check(coords)
    assert len(built) == 2


def test_an_in_place_change_that_changes_nothing_is_harmless() -> None:
    coords = tensor()
    check(coords)
    coords += 0
    check(coords)


def test_two_sets_of_one_length_are_told_apart(built: list[KernelMap]) -> None:
    """What a key chosen by the user cannot do: equal N, other coordinates."""
    one, other = tensor(seed=1), tensor(seed=2)
    for _ in range(2):
        check(one)
        check(other)
    assert len(built) == 2


def test_the_memory_of_a_dead_tensor_is_not_taken_for_it() -> None:
    """The next tensor often gets the address, and the id, of the one that has just died."""
    places = set()
    for seed in range(30):
        coords = tensor(seed=seed)
        places.add((id(coords), coords.data_ptr()))
        check(coords)
        del coords
    assert len(places) < 30, "no address was used again: this test shows nothing"


def test_equal_views_share_one_map(built: list[KernelMap]) -> None:
    base = tensor()
    for _ in range(3):
        check(base[50:150])
        check(base.view(200, 4)[50:150])
    assert (len(built), len(api._coords_cache)) == (1, 1)
    array = base.numpy().copy()
    for _ in range(3):
        check(array[50:150])
    assert (len(built), len(api._coords_cache)) == (2, 2)


def test_a_view_of_all_rows_is_right(built: list[KernelMap]) -> None:
    base = tensor()
    check(base)
    check(base[:])
    check(base.detach())
    assert len(built) <= 3


def test_slices_of_one_tensor_are_told_apart(built: list[KernelMap]) -> None:
    base = torch.cat([tensor(seed=1), tensor(seed=2)])
    wide = torch.cat([tensor(seed=3), tensor(seed=4)], dim=1)
    for _ in range(2):
        for view in (base[:200], base[200:], base[::2], base[1::2], wide[:, :4], wide[:, 4:], wide[:, 1:4]):
            # Of three columns, or of two sets at once, voxels may repeat: that is an error, not a mix-up.
            if len(torch.unique(view, dim=0)) == len(view):
                check(view)
    assert len(built) == len(api._coords_cache) <= 7


def test_a_changed_base_changes_its_views() -> None:
    base = tensor()
    check(base[50:150])
    base.numpy()[60, 3] += 1000
    check(base[50:150])
    check(base)


def test_entries_go_with_their_tensor() -> None:
    coords, view = tensor(), tensor()[:100]
    check(coords)
    check(view)
    assert len(api._coords_cache) == 2
    kept = weakref.ref(coords)
    del coords
    assert (kept(), len(api._coords_cache)) == (None, 1)
    del view
    assert len(api._coords_cache) == 0


def test_entries_go_with_their_array() -> None:
    coords = tensor().numpy()
    check(coords)
    assert len(api._coords_cache) == 1
    del coords
    assert len(api._coords_cache) == 0


def test_entries_go_with_reference_cycles() -> None:
    class Frame:
        def __init__(self) -> None:
            self.coords, self.me = tensor(), self

    frame = Frame()
    check(frame.coords)
    del frame
    gc.collect()
    assert len(api._coords_cache) == 0


def test_temporaries_leave_nothing() -> None:
    for seed in range(5):
        check(tensor(seed=seed))
        check(tensor(seed=seed).numpy())
        check(tensor(seed=seed)[:, 1:].contiguous() * 3)
    assert len(api._coords_cache) == 0


def test_slices_of_a_tensor_that_lives_on_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_coords_cache", TensorCache[Any](3))
    base = tensor(400)
    for start in range(0, 20):
        check(base[start : start + 50])
        assert len(api._coords_cache) <= 3


def test_memory_is_given_back() -> None:
    """Ten thousand frames through one process: here fewer, each of 1.5 MB of pairs."""
    import psutil

    process, sizes = psutil.Process(), []
    for number in range(60):
        coords = torch.from_numpy(voxels(20_000, 40, seed=number % 3))
        convolve(coords)
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[20] < 8 * 2**20, "60 frames would hold 90 MB"


def test_clear_caches_forgets_maps(built: list[KernelMap]) -> None:
    coords = tensor()
    check(coords)
    sc.clear_caches()
    assert len(api._coords_cache) == 0
    check(coords)
    assert len(built) == 2


def test_inference_mode() -> None:
    with torch.inference_mode():
        coords = tensor() + 0
        assert coords.is_inference()
        check(coords)
        coords[7, 3] += 1000
        check(coords)
        check(coords[:100])
