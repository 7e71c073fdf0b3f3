"""Point-cloud files to arrays: raw .bin and .pcd.bin, .npy, .npz.

The raw layouts are those of the data sets themselves: KITTI and SemanticKITTI write four little-endian
float32 a point (x, y, z, reflectance), nuScenes five (x, y, z, intensity, ring), without any header.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.errors import InputError

ACCEPTED_FORMATS = (
    ".pcd.bin (nuScenes: 5 x float32 a point), .bin (KITTI, SemanticKITTI: 4 x float32 a point), "
    ".npy (array [P, C], C >= 3), .npz (such an array), or any raw file with columns= and dtype= given"
)
# In this order: the first key present is read.
NPZ_KEYS = ("points", "pc", "xyz", "coord", "coords", "pointcloud", "point_cloud", "cloud", "lidar", "data")
# Arrays that files of voxels have beside "coords", those that spconv-run writes among them.
_BESIDE_VOXELS = {"features", "spatial_shape"}
RAW_DTYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}
# Layouts named in the message when a raw file's size does not fit the expected row.
_KNOWN_ROWS = ((3, "float32"), (4, "float32"), (5, "float32"), (6, "float32"), (4, "float16"), (5, "float16"))
# A float32 holds millimetres up to 2^14 m. No sensor reaches so far: such values mean another layout.
_FLOAT32_MILLIMETRE_LIMIT = 16384.0


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points as read: finite positions only.

    xyz: float32 [P, 3], metres as stored in the file, columns x, y, z.
    features: float32 [P, F], every column of the file, x, y, z first (what MeanVFE-style networks take).
    source_format: what the points were read from, for messages.
    dropped: rows left out because x, y or z was NaN or infinite.
    """

    xyz: npt.NDArray[np.float32]
    features: npt.NDArray[np.float32]
    source_format: str
    dropped: int = 0

    def __len__(self) -> int:
        return int(self.xyz.shape[0])


def is_raw_file(path: str | os.PathLike[str]) -> bool:
    """True if `read_points` reads this name as headerless rows, where columns= and dtype= have a meaning."""
    return Path(path).suffix.lower() not in (".npy", ".npz")


def read_points(
    path: str | os.PathLike[str],
    *,
    columns: int | None = None,
    dtype: str | None = None,
    key: str | None = None,
) -> PointCloud:
    """Reads one point cloud; the format follows from the file's name.

    columns, dtype: the layout of a raw file ("float16", "float32" or "float64", little-endian), where the
    name's own rule is wrong, e.g. columns=5, dtype="float16". Not accepted for .npy and .npz. Where dtype is
    given, the values may be of any size.
    key: which array of an .npz file to read; needed for "coords" in a file that seems to hold voxels.

    Raises InputError for a missing, unreadable, empty, truncated or corrupt file, a folder, object arrays,
    arrays that are not [P, C >= 3] numbers, coordinates that float32 cannot hold to a millimetre, and for
    raw files whose values show that the layout is another one.
    """
    file = Path(path)
    _require_regular_file(file)
    if is_raw_file(file):
        if key is not None:
            raise InputError(f"{file}: key={key!r} selects an array of an .npz file; this is a raw file")
        return _read_raw(file, columns, dtype)
    if columns is not None or dtype is not None:
        raise InputError(
            f"{file}: columns= and dtype= describe raw files; {file.suffix} carries its own shape and dtype"
        )
    if file.suffix.lower() == ".npy":
        if key is not None:
            raise InputError(f"{file}: key={key!r} selects an array of an .npz file; this is an .npy file")
        return _point_cloud(_load_npy(file), file, "npy")
    chosen, array = _load_npz(file, key)
    return _point_cloud(array, file, f"npz[{chosen}]")


def _require_regular_file(file: Path) -> None:
    try:
        if file.is_dir():
            raise InputError(f"{file}: is a folder; accepted: {ACCEPTED_FORMATS}")
        size = file.stat().st_size
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); accepted: {ACCEPTED_FORMATS}") from error
    if not file.is_file():
        raise InputError(f"{file}: is not a regular file; accepted: {ACCEPTED_FORMATS}")
    if size == 0:
        raise InputError(f"{file}: is empty (0 bytes); accepted: {ACCEPTED_FORMATS}")


def _read_raw(file: Path, columns: int | None, dtype: str | None) -> PointCloud:
    overridden = columns is not None or dtype is not None
    name = file.name.lower()
    if not overridden and not name.endswith(".bin"):
        raise InputError(f"{file}: unknown format {file.suffix or '(no suffix)'!r}; accepted: {ACCEPTED_FORMATS}")
    n_columns = columns if columns is not None else (5 if name.endswith(".pcd.bin") else 4)
    type_name = dtype if dtype is not None else "float32"
    if n_columns < 3:
        raise InputError(f"columns={n_columns}: a point has x, y, z, so 3 or more columns are accepted")
    if type_name not in RAW_DTYPES:
        raise InputError(f"dtype={type_name!r}: accepted for raw files: {', '.join(RAW_DTYPES)}")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    stored = np.dtype(RAW_DTYPES[type_name])
    row_bytes = n_columns * stored.itemsize
    if len(data) % row_bytes:
        raise InputError(_truncated_message(file, len(data), n_columns, type_name, row_bytes))
    rows = np.frombuffer(data, dtype=stored).reshape(-1, n_columns)
    cloud = _point_cloud(rows, file, f"raw {n_columns} x {type_name}")
    # Who names the type has looked; columns alone may come from a data set that the file only seems to be of.
    if dtype is None:
        _require_sensor_range(cloud, file)
    return cloud


def _truncated_message(file: Path, size: int, columns: int, dtype: str, row_bytes: int) -> str:
    fits = [
        f"columns={c}, dtype={d!r}"
        for c, d in _KNOWN_ROWS
        if size % (c * np.dtype(RAW_DTYPES[d]).itemsize) == 0 and (c, d) != (columns, dtype)
    ]
    hint = f"; the size would fit {' or '.join(fits)}" if fits else ""
    return (
        f"{file}: {size:,} bytes is not a whole number of rows of {columns} x {dtype} ({row_bytes} bytes a "
        f"row, {size % row_bytes} left over): truncated or another layout{hint}; accepted: {ACCEPTED_FORMATS}"
    )


def _require_sensor_range(cloud: PointCloud, file: Path) -> None:
    if len(cloud) == 0:
        raise InputError(
            f"{file}: none of its {cloud.dropped:,} rows, read as {cloud.source_format}, has finite x, y, z; "
            "if the layout is another one, give columns= and dtype="
        )
    reach = float(np.abs(cloud.xyz).max())
    if reach > _FLOAT32_MILLIMETRE_LIMIT:
        raise InputError(
            f"{file}: read as {cloud.source_format} it has coordinates up to {reach:.3g} m; no sensor sees "
            f"{_FLOAT32_MILLIMETRE_LIMIT:.0f} m, so the layout must be another one: give columns= and dtype="
        )


def _load_npy(file: Path) -> Any:
    try:
        # numpy reports a broken header in many ways, SyntaxError and MemoryError among them: all bad input.
        with file.open("rb") as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)
    except Exception as error:
        raise InputError(f"{file}: not a readable .npy file: {_reason(error)}") from error


def _load_npz(file: Path, key: str | None) -> tuple[str, Any]:
    try:
        with file.open("rb") as stream:
            if stream.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise InputError(f"{file}: is a single .npy array, not an .npz archive; rename it to .npy")
        # numpy takes what is no archive for a pickle, and tells how to load that.
        if not zipfile.is_zipfile(file):
            raise InputError(f"{file}: not a readable .npz file: no zip archive, or not all of one")
        opened = np.load(file, allow_pickle=False)
        with opened as archive:
            chosen = _choose_key(file, archive.files, key)
            array = archive[chosen]
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of a member that is no .npy file
            raise InputError(f"{file}: {chosen!r} is no array; accepted: archives that numpy.savez wrote")
        return chosen, array
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{file}: not a readable .npz file: {_reason(error)}") from error


def _choose_key(file: Path, found: list[str], key: str | None) -> str:
    if key is not None:
        if key not in found:
            raise InputError(f"{file}: no array {key!r}; keys found: {', '.join(found) or '(none)'}")
        return key
    for name in NPZ_KEYS:
        if name not in found:
            continue
        beside = _BESIDE_VOXELS.intersection(found)
        if name == "coords" and beside:
            raise InputError(
                f"{file}: arrays {', '.join(found)}: coords beside {' and '.join(sorted(beside))} are voxels; "
                f"accepted: points, [P, C] in one array ({', '.join(NPZ_KEYS)}), or key='coords' if these are points"
            )
        return name
    if len(found) == 1:
        return found[0]
    raise InputError(
        f"{file}: which array holds the points? keys found: {', '.join(found) or '(none)'}; "
        f"accepted: one of {', '.join(NPZ_KEYS)}, a file with a single array, or key="
    )


def _reason(error: Exception) -> str:
    if "allow_pickle" in str(error):
        return "its array holds Python objects; accepted: arrays of numbers"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _point_cloud(array: Any, file: Path, source_format: str) -> PointCloud:
    if array.dtype.kind not in "fiu":
        raise InputError(f"{file}: array of dtype {array.dtype}; accepted: floating point or integer [P, C]")
    if array.ndim != 2 or array.shape[1] < 3:
        raise InputError(
            f"{file}: array of shape {list(array.shape)}; accepted: [P, C] with C >= 3, columns x, y, z, ..."
        )
    finite = np.isfinite(array[:, :3]).all(axis=1)
    kept = array if finite.all() else array[finite]
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(kept, dtype=np.float32)
    xyz = np.ascontiguousarray(features[:, :3])
    _require_float32_is_enough(kept[:, :3], xyz, file)
    return PointCloud(xyz, features, source_format, int(array.shape[0] - kept.shape[0]))


def _require_float32_is_enough(stored: Any, xyz: npt.NDArray[np.float32], file: Path) -> None:
    if stored.dtype.kind == "f" and stored.dtype.itemsize <= 4 or stored.size == 0:
        return
    exact = stored.astype(np.float64)
    worst = float(np.abs(exact - xyz).max())
    if not worst <= 1e-3:
        raise InputError(
            f"{file}: {stored.dtype} coordinates up to {float(np.abs(exact).max()):.6g} move by {worst:.3g} "
            "m when stored as float32; subtract an origin first (1 mm is accepted)"
        )
