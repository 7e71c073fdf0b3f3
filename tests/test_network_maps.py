"""build_maps: every level's map is what the single calls build, found by them afterwards, after at most one sort."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import voxels

import spconv_compiler as sc
from spconv_compiler import driver, row_order, sparse_driver, sparse_map
from spconv_compiler.errors import InputError
from spconv_compiler.options import triple
from spconv_compiler.reference import kernel_map

SHAPE = (12, 30, 34)
GEOMETRIES = {
    "subm0": sc.MapGeometry(3, submanifold=True),
    "down1": sc.MapGeometry(3, stride=2, padding=1),
    "subm1": sc.MapGeometry(3, submanifold=True, reads="down1"),
    "again1": sc.MapGeometry(3, dilation=2, submanifold=True, reads="down1"),
    "down2": sc.MapGeometry((3, 1, 1), stride=(2, 1, 1), reads="down1"),
    "subm2": sc.MapGeometry((1, 3, 3), submanifold=True, reads="down2"),
    "up1": sc.MapGeometry(2, stride=2, transposed=True, reads="down1", onto="input"),
    "pool": sc.MapGeometry(2, stride=2),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    sc.clear_caches()
    yield
    sc.clear_caches()


def shuffled(rows: int = 3000, seed: int = 0) -> Any:
    return torch.from_numpy(voxels(rows, SHAPE, batches=2, seed=seed))


def build(coords: Any) -> sc.NetworkMaps:
    return sc.build_maps(coords, GEOMETRIES, spatial_shape=SHAPE, batch_size=2)


def same_map(one: sc.SparseMap, other: sc.SparseMap) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.pairs(), other.pairs(), strict=True))


def test_maps_are_those_of_single_calls() -> None:
    coords = shuffled()
    maps = build(coords)
    assert list(maps) == list(GEOMETRIES) and maps.levels == ("input", "down1", "down2", "pool")
    down1 = sc.build_map(coords, 3, stride=2, padding=1, spatial_shape=SHAPE, batch_size=2)
    assert torch.equal(maps.coords("down1"), down1.out_coords) and same_map(maps["down1"], down1)
    assert maps.spatial_shape("down1") == down1.out_spatial_shape == (6, 15, 17)
    down2 = sc.build_map(down1.out_coords, (3, 1, 1), stride=(2, 1, 1), spatial_shape=(6, 15, 17), batch_size=2)
    assert torch.equal(maps.coords("down2"), down2.out_coords) and same_map(maps["down2"], down2)
    up1 = sc.build_map(down1.out_coords, 2, stride=2, transposed=True, out_coords=coords)
    assert same_map(maps["up1"], up1) and maps["up1"].out_coords is coords


def test_convolutions_find_the_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No map is built by the layers of the network; results are those without build_maps."""
    rng = np.random.default_rng(1)
    coords, weights = shuffled(), torch.from_numpy(rng.integers(-3, 4, (4, 3, 3, 3, 4)).astype(np.float32))
    features = torch.from_numpy(rng.integers(-3, 4, (len(coords), 4)).astype(np.float32))

    def network(coords: Any) -> list[torch.Tensor]:
        first = sc.subm_conv3d(coords, features, weights, spatial_shape=SHAPE)
        down_coords, down = sc.sparse_conv3d(
            coords, first, weights, stride=2, padding=1, spatial_shape=SHAPE, batch_size=2
        )
        near, far = (sc.subm_conv3d(down_coords, down, weights, dilation=step) for step in (1, 2))
        return [first, down, near, far]

    plain = network(coords.clone())
    maps = build(coords)
    built: list[str] = []
    for owner, name in ((driver.ConvKernel, "build_map"), (sparse_driver.SparseKernel, "relate")):
        monkeypatch.setattr(owner, name, lambda *given, name=name, **named: built.append(name))
    found = network(coords)
    assert built == [] and all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    over_map = sc.mapped_conv3d(found[0], weights, map=maps["down1"])
    assert torch.equal(over_map, found[1]) and maps["subm1"].rows == len(found[1])


def test_one_sort_serves_all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random rows are sorted by the first map; others get that order, and levels that ascend get none."""
    given: list[bool] = []
    right = row_order.known_address

    def watched(rows: int) -> int:
        given.append(right(rows) != 0)
        return right(rows)

    monkeypatch.setattr(row_order, "known_address", watched)
    maps = build(shuffled())
    # subm0 sorts; down1 and pool read the input again; subm1, again1, down2, subm2 and up1 read rows that ascend.
    assert given == [False, True, False, False, False, False, False, True]
    assert (np.diff(np.asarray(maps.coords("down1")) @ np.array([10**6, 10**4, 10**2, 1])) > 0).all()


@pytest.mark.parametrize("order", ["reversed", "of_other_rows"])
def test_a_wrong_order_is_noticed(order: str) -> None:
    """An order is a hint: a permutation that does not sort costs time and changes nothing."""
    coords = shuffled(500, seed=3)
    plain = sc.build_map(coords, 3, stride=2, padding=1)
    known = row_order.KnownOrder()
    with row_order.reading(known):
        sc.build_map(coords if order == "reversed" else shuffled(500, seed=4), 3, stride=2, padding=1)
    assert known.rows is not None
    if order == "reversed":
        known.rows.array()[:] = known.rows.array()[::-1].copy()
    with row_order.reading(known):
        hinted = sc.build_map(coords, 3, stride=2, padding=1)
    assert torch.equal(plain.out_coords, hinted.out_coords) and same_map(plain, hinted)


@pytest.mark.parametrize("kind", ["int64", "three columns", "numpy"])
def test_kinds_of_coordinates(kind: str) -> None:
    given = shuffled(400, seed=5)
    given[:, 0] = 0
    given = torch.unique(given, dim=0)[torch.randperm(len(torch.unique(given, dim=0)))]
    coords: Any = {"int64": given.long(), "three columns": given[:, 1:].contiguous(), "numpy": given.numpy()}[kind]
    maps = sc.build_maps(coords, {"down": sc.MapGeometry(2, stride=2), "subm": sc.MapGeometry(submanifold=True)})
    plain = sc.build_map(given, 2, stride=2)
    assert np.array_equal(np.asarray(maps.coords("down")), np.asarray(plain.out_coords)[:, 4 - coords.shape[1] :])
    assert same_map(maps["down"], plain) and maps["subm"].rows == len(given)


def test_no_voxels_and_outputs_that_vanish() -> None:
    empty = torch.zeros(0, 4, dtype=torch.int32)
    maps = build(empty)
    assert maps["subm0"].kernel_map is None and maps.coords("down2").shape == (0, 4)
    assert maps["subm0"].rows == 0 and [len(part) for part in maps["subm0"].pairs()] == [0, 0, 0]
    last_plane = torch.tensor([[0, 4, 0, 0], [0, 4, 3, 3]], dtype=torch.int32)
    geometries = {"down": sc.MapGeometry(2, stride=2), "subm": sc.MapGeometry(submanifold=True, reads="down")}
    maps = sc.build_maps(last_plane, geometries, spatial_shape=(5, 4, 4))
    assert maps["down"].out_rows == 0 and maps["subm"].kernel_map is None


def test_names_that_are_not_there() -> None:
    coords = shuffled(100)
    with pytest.raises(InputError, match="'a' reads level 'down9'; accepted: one made before it: input"):
        sc.build_maps(coords, {"a": sc.MapGeometry(reads="down9")})
    with pytest.raises(InputError, match="'a' writes onto level 'x'"):
        sc.build_maps(coords, {"a": sc.MapGeometry(onto="x")})
    with pytest.raises(InputError, match='a geometry is called "input"'):
        sc.build_maps(coords, {"input": sc.MapGeometry()})
    with pytest.raises(InputError, match="a submanifold geometry has a stride"):
        sc.MapGeometry(3, stride=2, submanifold=True)


def test_memory_of_maps() -> None:
    """At most 12 bytes for a pair and 40 for a voxel, pairs of both directions included once each."""
    maps = build(shuffled(6000, seed=6))
    down = maps["down1"]
    pairs = len(down.pairs()[0])
    assert 8 * pairs < down.nbytes <= 12 * pairs + 40 * (down.in_rows + down.out_rows)
    subm = maps["subm1"].kernel_map
    assert len(maps["subm1"].pairs()[0]) == subm.pairs
    assert 8 * subm.pairs < subm.nbytes <= 12 * subm.pairs + 40 * subm.rows
    assert isinstance(down, sparse_map.SparseMap)


@pytest.mark.parametrize(
    ("size", "dilation", "target"),
    [(3, 1, None), ((1, 3, 5), (1, 2, 1), None), pytest.param(3, 1, "gfx950-sim", marks=pytest.mark.slow)],
)
def test_pairs_of_submanifold_entries(size: Any, dilation: Any, target: str | None) -> None:
    coords, geometry = shuffled(300), sc.MapGeometry(size, dilation=dilation, submanifold=True)
    map_ = sc.build_maps(coords, {"subm": geometry}, target=target)["subm"]
    table = kernel_map(coords.numpy(), triple(size, "size"), triple(dilation, "dilation"))
    tap, row = np.nonzero(table.T >= 0)
    for found, wanted in zip(map_.pairs(), (tap, table[row, tap], row), strict=True):
        assert found.dtype == np.int32 and np.array_equal(found, wanted)
    assert map_.coords is coords and map_.rows == 300 and map_.kernel_map.pairs == len(tap)
    assert repr(map_).startswith("SubmanifoldMap(300 voxels, ConvGeometry(kernel_size=(")


def test_levels_without_room() -> None:
    """No cell of a level is left: it is empty, as is all that is made of it."""
    geometries = {
        "down": sc.MapGeometry(3, stride=2),
        "subm": sc.MapGeometry(3, submanifold=True, reads="down"),
        "pool": sc.MapGeometry(2, stride=2, reads="down"),
        "back": sc.MapGeometry(3, stride=2, transposed=True, reads="down", onto="input"),
    }
    maps = sc.build_maps(torch.tensor([[0, 0, 4, 4]], dtype=torch.int32), geometries, spatial_shape=(2, 9, 9))
    assert maps.spatial_shape("down") == (0, 4, 4) and maps.spatial_shape("pool") == (0, 2, 2)
    assert [len(maps.coords(level)) for level in maps.levels] == [1, 0, 0]
    assert [len(map_.pairs()[0]) for map_ in maps.values()] == [0, 0, 0, 0]
    assert (maps["back"].in_rows, maps["back"].out_rows) == (0, 1)


@pytest.mark.parametrize(
    ("geometries", "message"),
    [
        ({"a": sc.MapGeometry(2, submanifold=True)}, "'a': kernel_size is (2, 2, 2); accepted: three odd sizes"),
        ({"a": sc.MapGeometry((3, 3), stride=2)}, "'a': kernel_size is (3, 3); accepted: one whole number"),
        ({"b": sc.MapGeometry(3, stride=2, output_padding=1)}, "'b': output_padding is (1, 1, 1); accepted: 0, or"),
        ({"c": sc.MapGeometry(3, stride=2, onto="input")}, "'c': 99 out_coords are out of range, the first in row 0"),
        ({"d": 3}, "'d' is a int; accepted: a MapGeometry"),
        ([sc.MapGeometry(3)], "geometries are a list; accepted: a dict of MapGeometry by name"),
    ],
)
def test_errors_name_the_entry(geometries: Any, message: str) -> None:
    coords = shuffled(100) + torch.tensor([0, 6, 15, 17], dtype=torch.int32)
    with pytest.raises(InputError) as error:
        sc.build_maps(coords, geometries, spatial_shape=(18, 45, 51))
    assert str(error.value).startswith(message)


def test_unit_steps_of_a_submanifold_entry_may_be_spelt_out() -> None:
    spelt = sc.MapGeometry(3, stride=(1, 1, 1), padding=[0, 0, 0], submanifold=True)
    assert sc.build_maps(shuffled(30), {"subm": spelt})["subm"].rows == 30


def test_a_level_that_is_not_there() -> None:
    maps = sc.build_maps(shuffled(20), {"subm": sc.MapGeometry(3, submanifold=True)})
    for ask in (maps.coords, maps.spatial_shape):
        with pytest.raises(InputError, match="there is no level 'subm'; accepted: 'input'"):
            ask("subm")
