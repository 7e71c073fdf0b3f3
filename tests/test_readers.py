"""Readers: the layouts of the data sets, and a clear refusal of everything else."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from spconv_compiler.errors import InputError
from spconv_compiler.io import PRESETS, get_preset, is_raw_file, read_points


def grid(rows: int, columns: int) -> np.ndarray:
    return (np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) - 7.0) / 8.0


@pytest.mark.parametrize(("name", "columns"), [("a.bin", 4), ("A.BIN", 4), ("n015__LIDAR_TOP__1.pcd.bin", 5)])
def test_raw_layout_follows_from_the_name(tmp_path: Path, name: str, columns: int) -> None:
    points = grid(6, columns)
    (tmp_path / name).write_bytes(points.astype("<f4").tobytes())
    cloud = read_points(tmp_path / name)
    assert np.array_equal(cloud.features, points)
    assert np.array_equal(cloud.xyz, points[:, :3])
    assert cloud.xyz.dtype == cloud.features.dtype == np.float32
    assert cloud.xyz.flags.c_contiguous
    assert (len(cloud), cloud.dropped, cloud.source_format) == (6, 0, f"raw {columns} x float32")


def test_override_for_other_raw_files(tmp_path: Path) -> None:
    points = grid(8, 5)
    (tmp_path / "sweeps.dat").write_bytes(points.astype("<f2").tobytes())
    cloud = read_points(tmp_path / "sweeps.dat", columns=5, dtype="float16")
    assert np.array_equal(cloud.features, points)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<i4", "<f2"])
def test_npy_of_any_number_type(tmp_path: Path, dtype: str) -> None:
    points = (grid(5, 6) * 8.0).astype(dtype)
    np.save(tmp_path / "a.npy", points)
    assert np.array_equal(read_points(tmp_path / "a.npy").features, points.astype(np.float32))


def test_npy_in_fortran_order(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(grid(5, 4)))
    cloud = read_points(tmp_path / "a.npy")
    assert np.array_equal(cloud.features, grid(5, 4))
    assert cloud.features.flags.c_contiguous


def test_npy_of_no_points_is_an_empty_cloud(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 4), np.float32))
    cloud = read_points(tmp_path / "a.npy")
    assert cloud.xyz.shape == (0, 3) and cloud.features.shape == (0, 4)


@pytest.mark.parametrize("chosen", ["points", "pc", "xyz", "coord"])
def test_npz_takes_the_usual_key_among_others(tmp_path: Path, chosen: str) -> None:
    np.savez(tmp_path / "a.npz", color=np.zeros((4, 3), np.float32), **{chosen: grid(4, 3)})
    cloud = read_points(tmp_path / "a.npz")
    assert np.array_equal(cloud.xyz, grid(4, 3))
    assert cloud.source_format == f"npz[{chosen}]"


def test_npz_takes_a_single_array_or_the_named_one(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "one.npz", whatever=grid(4, 3))
    np.savez(tmp_path / "two.npz", points=grid(4, 3), second=grid(5, 4))
    assert len(read_points(tmp_path / "one.npz")) == 4
    assert len(read_points(tmp_path / "two.npz", key="second")) == 5


def test_npz_error_lists_the_keys_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", alpha=grid(4, 3), beta=grid(4, 3))
    with pytest.raises(InputError, match=r"keys found: alpha, beta.*accepted: one of points"):
        read_points(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"no array 'gamma'; keys found: alpha, beta"):
        read_points(tmp_path / "a.npz", key="gamma")


def test_npz_of_voxels_is_not_taken_for_points(tmp_path: Path) -> None:
    """Their batch was taken for x, and cells for metres."""
    voxels = {"coords": np.zeros((4, 4), np.int32), "features": grid(4, 5)}
    np.savez(tmp_path / "voxels.npz", **voxels)
    with pytest.raises(InputError, match=r"arrays coords, features: coords beside features are voxels.*'coords' if"):
        read_points(tmp_path / "voxels.npz")
    assert read_points(tmp_path / "voxels.npz", key="coords").xyz.shape == (4, 3)
    np.savez(tmp_path / "result.npz", coords=voxels["coords"], out=grid(2, 2), spatial_shape=np.array([1, 1, 1]))
    with pytest.raises(InputError, match="coords beside spatial_shape are voxels"):
        read_points(tmp_path / "result.npz")
    np.savez(tmp_path / "both.npz", points=grid(7, 4), **voxels)
    assert len(read_points(tmp_path / "both.npz")) == 7


def test_rows_without_a_position_are_dropped_and_counted(tmp_path: Path) -> None:
    points = grid(6, 4)
    points[1, 0], points[3, 2], points[4, 1] = np.nan, np.inf, -np.inf
    points[5, 3] = np.nan  # a missing reflectance is no reason to lose the point
    points.tofile(tmp_path / "a.bin")
    cloud = read_points(tmp_path / "a.bin")
    assert cloud.dropped == 3
    assert np.array_equal(cloud.features, points[[0, 2, 5]], equal_nan=True)


def test_truncated_raw_file_names_size_row_and_formats(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(grid(6, 4).tobytes()[:-3])
    with pytest.raises(
        InputError, match=r"a\.bin: 93 bytes is not .* 4 x float32 \(16 bytes a row, 13 left over\)"
    ) as e:
        read_points(tmp_path / "a.bin")
    assert "nuScenes: 5 x float32" in str(e.value)


def test_truncated_message_suggests_layouts_that_fit(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(grid(7, 5).astype("<f2").tobytes())
    with pytest.raises(InputError, match=r"would fit columns=5, dtype='float16'"):
        read_points(tmp_path / "a.bin")


def test_raw_file_of_another_type_is_seen_by_its_values(tmp_path: Path) -> None:
    """A float16 file whose size happens to be whole rows of float32 must not be read as garbage."""
    points = np.tile(np.array([[30.5, -12.25, 1.0, 80.0, 3.0]], "<f2"), (16, 1))
    (tmp_path / "a.bin").write_bytes(points.tobytes())
    with pytest.raises(InputError, match=r"coordinates up to .* give columns= and dtype="):
        read_points(tmp_path / "a.bin")
    # Nor when the caller, or a preset, says only how many columns there should be.
    with pytest.raises(InputError, match=r"read as raw 5 x float32 it has coordinates up to"):
        read_points(tmp_path / "a.bin", columns=5)
    (grid(2, 4) + 1e6).astype("<f4").tofile(tmp_path / "far.bin")
    with pytest.raises(InputError, match="no sensor sees"):
        read_points(tmp_path / "far.bin")
    assert len(read_points(tmp_path / "far.bin", dtype="float32")) == 2
    np.full((4, 4), np.nan, np.float32).tofile(tmp_path / "nan.bin")
    with pytest.raises(InputError, match=r"none of its 4 rows"):
        read_points(tmp_path / "nan.bin")


def test_coordinates_that_float32_would_move_are_refused(tmp_path: Path) -> None:
    utm = np.array([[431_000.123, 5_402_000.456, 210.0], [431_001.0, 5_402_001.0, 211.0]])
    np.save(tmp_path / "utm.npy", utm)
    with pytest.raises(InputError, match=r"move by .* m when stored as float32; subtract an origin"):
        read_points(tmp_path / "utm.npy")
    np.save(tmp_path / "local.npy", utm - utm[0])
    assert len(read_points(tmp_path / "local.npy")) == 2
    np.save(tmp_path / "huge.npy", np.full((2, 3), 1e300))
    with pytest.raises(InputError, match="move by"):
        read_points(tmp_path / "huge.npy")


def test_paths_that_hold_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_points(tmp_path / "missing.bin")
    with pytest.raises(InputError, match="is a folder"):
        read_points(tmp_path)
    (tmp_path / "empty.npz").write_bytes(b"")
    with pytest.raises(InputError, match=r"is empty \(0 bytes\)"):
        read_points(tmp_path / "empty.npz")
    (tmp_path / "cloud.las").write_bytes(b"LASF" * 20)
    with pytest.raises(InputError, match=r"unknown format '.las'; accepted: .pcd.bin"):
        read_points(tmp_path / "cloud.las")


@pytest.mark.parametrize("name", ["a.bin", "a.npy", "a.npz"])
def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).write_bytes(b"x" * 32)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        read_points(tmp_path / name)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(12, np.float32), r"shape \[12\]; accepted: \[P, C\]"),
        (np.zeros((2, 3, 4), np.float32), r"shape \[2, 3, 4\]"),
        (np.zeros((4, 2), np.float32), r"shape \[4, 2\]"),
        (np.zeros((4, 3), np.complex64), "dtype complex64"),
        (np.full((4, 3), "a"), "dtype <U1"),
        (np.zeros(4, [("x", "f4"), ("y", "f4"), ("z", "f4")]), "accepted: floating point or integer"),
        (np.array([[1, "a", None]], dtype=object), "its array holds Python objects"),
    ],
)
def test_arrays_that_are_no_points(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    np.savez(tmp_path / "a.npz", points=array, allow_pickle=True)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(InputError, match=message):
            read_points(tmp_path / name)


def test_damaged_archives_never_escape_as_another_error(tmp_path: Path) -> None:
    """Cut and overwritten .npy and .npz files either still read or raise InputError."""
    np.save(tmp_path / "a.npy", grid(40, 4))
    np.savez_compressed(tmp_path / "a.npz", points=grid(40, 4), other=grid(3, 3))
    rng, refused = random.Random(0), 0
    for name in ("a.npy", "a.npz"):
        good = (tmp_path / name).read_bytes()
        for _ in range(150):
            data = bytearray(good[: rng.randrange(1, len(good))] if rng.random() < 0.3 else good)
            for _ in range(rng.randrange(4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            (tmp_path / f"bad-{name}").write_bytes(data)
            try:
                read_points(tmp_path / f"bad-{name}")
            except InputError as error:
                refused += 1
                assert f"bad-{name}" in str(error)
    assert refused > 100


def test_files_of_one_kind_under_the_name_of_another(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", grid(4, 4))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(InputError, match=r"is a single \.npy array, not an \.npz archive; rename it"):
        read_points(tmp_path / "one.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("points", "1 2 3")
    with pytest.raises(InputError, match=r"text\.npz: 'points' is no array; accepted: archives that numpy"):
        read_points(tmp_path / "text.npz")


def test_pickles_are_not_executed(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    (tmp_path / "a.npz").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    for name in ("a.npy", "a.npz"):
        with pytest.raises(InputError, match=rf"not a readable \.{name[2:]} file"):
            read_points(tmp_path / name)


def test_arguments_that_do_not_fit_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", grid(4, 4))
    grid(4, 4).tofile(tmp_path / "a.bin")
    with pytest.raises(InputError, match="columns= and dtype= describe raw files"):
        read_points(tmp_path / "a.npy", columns=4)
    with pytest.raises(InputError, match="selects an array of an .npz"):
        read_points(tmp_path / "a.npy", key="points")
    with pytest.raises(InputError, match="selects an array of an .npz"):
        read_points(tmp_path / "a.bin", key="points")
    with pytest.raises(InputError, match="3 or more columns"):
        read_points(tmp_path / "a.bin", columns=2)
    with pytest.raises(InputError, match="accepted for raw files: float16, float32, float64"):
        read_points(tmp_path / "a.bin", dtype="int8")


def test_raw_names() -> None:
    assert is_raw_file("a.pcd.bin") and is_raw_file("a.bin") and is_raw_file("sweeps.dat")
    assert not is_raw_file("a.npy") and not is_raw_file("A.NPZ")


def test_presets_are_known_by_name() -> None:
    assert list(PRESETS) == ["kitti", "nuscenes", "waymo", "semantickitti", "scannet"]
    assert get_preset("kitti").voxel_size == (0.05, 0.05, 0.1)
    with pytest.raises(InputError, match="unknown preset 'kiti'; accepted: kitti, nuscenes"):
        get_preset("kiti")


@pytest.mark.parametrize(
    ("file", "points", "columns"),
    [
        ("kitti/000000.bin", 115_384, 4),
        ("semantickitti/00/velodyne/000000.bin", 124_668, 4),
        ("nuscenes/n015-2018-07-24-11-22-45+0800__LIDAR_TOP__1532402927647951.pcd.bin", 34_688, 5),
        ("waymo/benchmark-pc.npz", 198_130, 3),
        ("scannet/scene0000_00_vert_all.npy", 81_369, 6),
    ],
)
def test_real_frames(shared_dir: Path, file: str, points: int, columns: int) -> None:
    cloud = read_points(shared_dir / "data" / file)
    assert cloud.features.shape == (points, columns)
    assert cloud.dropped == 0
    assert np.abs(cloud.xyz).max() < 200.0


def test_real_float16_frame(shared_dir: Path) -> None:
    file = shared_dir / "data/nuscenes/ff9eff4389a740848f9a56ad749a4ae8.bin"
    with pytest.raises(InputError, match=r"2,711,560 bytes .* would fit .*columns=5, dtype='float16'"):
        read_points(file)
    cloud = read_points(file, columns=5, dtype="float16")
    assert cloud.features.shape == (271_156, 5)
    assert 0.0 <= cloud.features[:, 4].min() and cloud.features[:, 4].max() <= 0.5  # time lag, seconds
