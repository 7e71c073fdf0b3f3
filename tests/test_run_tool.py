"""spconv-run: formats, presets, results, --check, and everything that can go wrong for its user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spconv_compiler import api, env, nets, reference
from spconv_compiler.io import voxelize
from spconv_compiler.nets import stacks
from spconv_compiler.tools.run import main

PROGRAM = "import sys; from spconv_compiler.tools.run import main; sys.exit(main())"
# One narrow layer: quick to compile; shares its kernel among the tests of this file.
FAST = ("--net", "second-stage1", "--repeats", "1")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def points(rows: int = 400, columns: int = 4, seed: int = 0) -> Any:
    """Points in a box of 6 x 4 x 2 m around (8, 0, -1): about half of the 0.5 m cells."""
    rng = np.random.default_rng(seed)
    cloud = rng.uniform(0.0, 1.0, (rows, columns))
    cloud[:, :3] = cloud[:, :3] * (6.0, 4.0, 2.0) + (5.0, -2.0, -2.0)
    return cloud.astype(np.float32)


def scan(name: str = "scan.bin", cloud: Any = None) -> Path:
    """A file in the current folder."""
    path = Path(name)
    cloud = points() if cloud is None else cloud
    if path.suffix == ".npy":
        np.save(path, cloud)
    elif path.suffix == ".npz":
        np.savez(path, points=cloud)
    else:
        path.write_bytes(cloud.tobytes())
    return path


def command(*arguments: str, program: str = PROGRAM) -> Any:
    """What starts the tool in a process of its own: keyword arguments of subprocess.Popen."""
    return {"args": [sys.executable, "-c", program, *arguments], "env": dict(os.environ)}


def run_chain(name: str, voxels: Any, dtype: str = "f32") -> Any:
    """The network by the reference alone, layer by layer, rounded to dtype in between."""
    net = nets.get_net(name)
    values = reference.round_to(nets.standardize(voxels.features), dtype)
    for given in nets.make_parameters(net, values.shape[1], dtype):
        out = np.maximum(reference.subm_conv3d(voxels.coords, values, given.weight, given.bias), 0.0)
        values = reference.round_to(out, dtype)
    return values


@pytest.mark.parametrize(
    ("name", "columns"), [("scan.bin", 4), ("sweep.pcd.bin", 5), ("cloud.npy", 6), ("cloud.npz", 3)]
)
def test_each_format_gives_the_features_of_the_reference(
    name: str, columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = points(columns=columns)
    path = scan(name, cloud)
    assert main([str(path), "--voxel-size", "0.5", *FAST]) == 0
    printed = capsys.readouterr().out
    stem = name.split(".")[0]
    with np.load(f"{stem}-features.npz", allow_pickle=False) as stored:
        found = dict(stored)
    voxels = voxelize(cloud[:, :3], cloud, 0.5)
    assert np.array_equal(found["coords"], voxels.coords)
    assert np.array_equal(found["points_per_voxel"], voxels.points_per_voxel)
    assert found["spatial_shape"].tolist() == list(voxels.spatial_shape)
    assert found["voxel_size"].tolist() == [0.5, 0.5, 0.5] and found["origin"].tolist() == list(voxels.origin)
    assert (str(found["net"]), str(found["dtype"]), int(found["seed"])) == ("second-stage1", "f32", 0)
    expected = run_chain("second-stage1", voxels)
    assert found["features"].dtype == np.float32
    assert np.abs(found["features"] - expected).max() < 1e-4 * np.abs(expected).max()
    pairs = int((reference.kernel_map(voxels.coords) >= 0).sum())
    row = next(line.split() for line in printed.splitlines() if line.startswith("conv_input"))
    assert row[1:5] == [f"{len(voxels):,}", f"{pairs:,}", f"{pairs / len(voxels):.2f}", f"{columns}→16"]
    assert f"{stem}-features.npz" in printed and f"points    400 from {name}" in printed


def test_raw_layout_is_given_by_options(capsys: pytest.CaptureFixture[str]) -> None:
    path = scan("merged.bin", points(columns=5).astype(np.float16))
    assert main([str(path), "--columns", "5", "--raw-dtype", "float16", *FAST, "--no-output"]) == 0
    assert "raw 5 x float16" in capsys.readouterr().out
    assert main([str(scan("six.bin", points(columns=6))), "--preset", "scannet", *FAST, "--no-output"]) == 0
    assert "raw 6 x float32" in capsys.readouterr().out
    # The columns of a preset are a guess: the values still have to be those of a scan.
    halves = scan("halves.bin", points(columns=5).astype(np.float16))
    assert main([str(halves), "--preset", "nuscenes", *FAST, "--no-output"]) == 1
    assert "no sensor sees" in capsys.readouterr().err


def test_npz_of_voxels(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("voxels.npz", coords=np.zeros((4, 4), np.int32), features=points(rows=4))
    assert main(["voxels.npz", *FAST, "--no-output"]) == 1
    said = capsys.readouterr().err
    assert "voxels.npz: arrays coords, features: coords beside features are voxels" in said
    assert "or --key coords if these are points" in said


def test_npz_key(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("two.npz", first=points(), second=points(rows=90))
    assert main(["two.npz", "--key", "second", *FAST, "--no-output"]) == 0
    assert "points    90 from two.npz" in capsys.readouterr().out


def test_presets_and_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    behind = points()
    behind[:100, 0] -= 20.0
    path = str(scan("scan.bin", behind))
    options = (*FAST, "--no-output")
    assert main([path, "--preset", "kitti", *options]) == 0
    printed = capsys.readouterr().out
    assert "of 0.05 x 0.05 x 0.1 m (preset kitti), grid 40 x 1600 x 1408 (z, y, x), 100 points out of range" in printed
    assert main([path, "--preset", "kitti", "--voxel-size", "0.4", "0.4", "0.5", *options]) == 0
    assert "of 0.4 x 0.4 x 0.5 m (preset kitti), grid 8 x 200 x 176" in capsys.readouterr().out
    assert main([path, "--voxel-size", "1", "--range", "0", "-1", "-3", "4", "1", "1", *options]) == 1
    assert main([path, "--voxel-size", "1", "--range", "0", "-1", "-3", "8", "1", "1", *options]) == 0
    assert "grid 4 x 2 x 8 (z, y, x)" in capsys.readouterr().out
    assert main([str(scan("sweep.pcd.bin", points(columns=5))), *options]) == 0
    assert "of 0.075 x 0.075 x 0.2 m (preset nuscenes)" in capsys.readouterr().out


def test_a_file_may_follow_the_voxel_size(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(scan())
    for lengths in (["0.5"], ["0.5", "0.5", "1"]):
        assert main([*FAST, "--no-output", "--voxel-size", *lengths, path]) == 0
        assert f"of 0.5 x 0.5 x {lengths[-1]} m" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_check_passes_and_prints_the_error(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(scan()), "--voxel-size", "0.5", *FAST, "--check", "--dtype", dtype]) == 0
    printed = capsys.readouterr().out
    assert "check     2 layers within the error bound of the reference" in printed
    header, first = (line for line in printed.splitlines() if line.startswith(("layer", "conv_input")))
    assert header.split()[-4:] == ["max", "error", "of", "bound"]
    assert 0.0 < float(first.split()[-2]) <= 100.0 and first.endswith("%")


def test_check_fails_when_a_kernel_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = api.subm_conv3d

    def swapped(coords: Any, features: Any, weight: Any, *rest: Any, **options: Any) -> Any:
        return right(coords, features, np.ascontiguousarray(weight[:, :, :, ::-1]), *rest, **options)

    monkeypatch.setattr(stacks, "subm_conv3d", swapped)
    assert main([str(scan()), "--voxel-size", "0.5", *FAST, "--check", "--no-output"]) == 1
    captured = capsys.readouterr()
    assert "within the error bound" not in captured.out
    assert "check failed: conv_input:" in captured.err and "times the bound" in captured.err


def test_stored_dtypes() -> None:
    path = str(scan())
    for dtype, stored in (("f16", np.float16), ("bf16", np.float32)):
        assert main([path, "--voxel-size", "0.5", *FAST, "--dtype", dtype, "--out", f"{dtype}.npz"]) == 0
        with np.load(f"{dtype}.npz", allow_pickle=False) as found:
            assert found["features"].dtype == stored and str(found["dtype"]) == dtype
            assert np.array_equal(found["features"].astype(np.float32), reference.round_to(found["features"], dtype))


def test_seeds_change_weights_and_nothing_else() -> None:
    path, features = str(scan()), []
    for seed in ("0", "0", "5"):
        assert main([path, "--voxel-size", "0.5", *FAST, "--seed", seed, "--out", "o.npz"]) == 0
        with np.load("o.npz") as found:
            features.append(found["features"])
    assert np.array_equal(features[0], features[1]) and not np.array_equal(features[0], features[2])


def test_points_without_position_are_dropped_and_nan_features_stay(capsys: pytest.CaptureFixture[str]) -> None:
    cloud = points()
    cloud[:7, 1], cloud[7:10, 2], cloud[20, 3] = np.nan, np.inf, np.nan
    assert main([str(scan(cloud=cloud)), "--voxel-size", "0.5", *FAST, "--check", "--out", "o.npz"]) == 0
    printed = capsys.readouterr().out
    assert "points    390 from scan.bin" in printed and "10 rows with NaN or infinite x, y, z dropped" in printed
    assert "1 with NaN or infinite features" in printed
    with np.load("o.npz") as found:
        bad = np.isnan(found["features"]).any(axis=1)
    assert 0 < bad.sum() < len(bad)


def test_threads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCONV_NUM_THREADS", "2")
    assert main([str(scan()), "--voxel-size", "0.5", *FAST, "--no-output", "--threads", "1"]) == 0
    assert "1 thread;" in capsys.readouterr().out and env.NUM_THREADS.get() == 1


def test_list_nets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-nets"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name}" in f"\n{printed}" for name in nets.NETS)
    assert "small (default): " in printed and "    conv2: 3x3x3, 16→16, bias, relu\n" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "accepted: either FILE or --demo"),
        (["scan.bin", "--demo"], "accepted: either FILE or --demo"),
        (
            ["scan.bin", "--voxel-size", "0.1", "0.2"],
            "argument --voxel-size: '0.1 0.2'; accepted: one number, or three",
        ),
        (["scan.bin", "--voxel-size", "a", "b", "c"], "argument --voxel-size"),
        (["scan.bin", "--range", "1", "2"], "argument --range: expected 6 arguments"),
        (["scan.bin", "--out", "features.bin"], "argument --out: 'features.bin'; accepted: a name that ends in .npz"),
        (["scan.bin", "--out", "o.npz", "--no-output"], "not allowed with argument"),
        (["scan.bin", "--net", "huge"], "invalid choice: 'huge'"),
        (["scan.bin", "--dtype", "f64"], "invalid choice: 'f64'"),
        (["scan.bin", "--preset", "mars"], "invalid choice: 'mars'"),
        (["scan.bin", "--threads", "0"], "argument --threads: '0'; accepted: a whole number, at least 1"),
        (["scan.bin", "--seed", "-1"], "argument --seed"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    scan()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""
    assert os.listdir() == ["scan.bin"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.bin"], "missing.bin: cannot be read"),
        (["empty.bin"], "empty.bin: is empty (0 bytes)"),
        (["cut.bin"], "cut.bin: 50 bytes is not a whole number of rows"),
        (["cut.bin"], "any raw file with --columns and --raw-dtype given"),
        (["scan.laz"], "scan.laz: unknown format '.laz'"),
        (["."], "is a folder"),
        (["scan.bin", "--key", "points"], "--key points selects an array"),
        (["nan.npy"], "nan.npy: no voxel: no point has finite x, y, z"),
        (["scan.bin", "--range", "90", "0", "0", "99", "1", "1"], "scan.bin: no voxel: its points span x 5.0"),
        (["scan.bin", "--range", "5", "0", "0", "1", "1", "1"], "point_range="),
        (["scan.bin", "--voxel-size", "0"], "voxel_size="),
        (["scan.bin", "--voxel-size", "1e-9"], "cells along x, y, z"),
        (["scan.bin", "--target", "tpu"], "unknown target 'tpu'"),
        (["scan.bin", "--target", "gfx950"], "no AMD GPU: SPCONV_HIP: nowhere/libamdhip64.so"),
        (["scan.bin", "--out", "nowhere/o.npz"], "nowhere/o.npz: cannot be written"),
        (["scan.bin", "--out", "folder.npz"], "folder.npz: cannot be written: it exists and is not a regular file"),
        (["scan.npz", "--out", "scan.npz"], "scan.npz: is the input; it is not overwritten"),
        (["scan.npz", "--out", "link.npz"], "link.npz: is the input; it is not overwritten"),
    ],
)
def test_failures_are_one_line_and_write_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPCONV_HIP", "nowhere/libamdhip64.so")
    scan(), scan("scan.laz"), scan("scan.npz"), scan("nan.npy", np.full((5, 4), np.nan, np.float32))
    Path("empty.bin").touch(), Path("cut.bin").write_bytes(b"x" * 50)
    Path("folder.npz").mkdir(), Path("link.npz").symlink_to("scan.npz")
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    assert main([*arguments, *FAST]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("spconv-run: error: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert {path: path.stat().st_mtime_ns for path in Path().iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(scan().resolve())
    Path("locked").mkdir(mode=0o500)
    assert main([path, *FAST, "--out", "locked/o.npz"]) == 1
    assert "is not writable" in capsys.readouterr().err


def test_a_cache_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("taken").write_text("a file")
    monkeypatch.setenv("SPCONV_CACHE_DIR", "taken")
    monkeypatch.setenv("SPCONV_CACHE", "on")
    done = subprocess.run(**command(str(scan()), *FAST, "--no-output"), text=True, capture_output=True)
    assert done.returncode == 0
    line, rest = done.stderr.split("\n", 1)
    assert line.startswith("spconv-run: warning: compiled kernels cannot be kept in ") and rest == ""


def test_a_full_disk_leaves_the_old_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any, **arrays: Any) -> None:
        file.write(b"half a file")
        raise OSError(28, "No space left on device")

    Path("o.npz").write_text("old")
    monkeypatch.setattr(np, "savez", full)
    assert main([str(scan()), "--voxel-size", "0.5", *FAST, "--out", "o.npz"]) == 1
    assert "o.npz: cannot be written (No space left on device)" in capsys.readouterr().err
    assert Path("o.npz").read_text() == "old" and sorted(os.listdir()) == ["o.npz", "scan.bin"]


def test_demo_in_a_pipe_needs_no_torch_and_has_no_control_codes() -> None:
    program = f"import sys; sys.modules['torch'] = None; {PROGRAM}"
    demo = ("--demo", "--beams", "4", *FAST)
    done = subprocess.run(**command(*demo, "--check", program=program), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(generated, 4 beams)" in done.stdout and "\x1b" not in done.stdout and "\r" not in done.stdout
    assert Path("demo-features.npz").is_file()
    refused = subprocess.run(**command(*demo, "--dtype", "bf16", program=program), text=True, capture_output=True)
    assert refused.returncode == 1 and "dtype bf16 needs torch" in refused.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closed: str) -> None:
    """As a service may be started: the work is done all the same."""
    scan()
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" scan.bin {" ".join(FAST)} --out o.npz {closed}', sys.executable, PROGRAM]
    )
    assert done.returncode == 0 and Path("o.npz").is_file()


def test_a_terminal_without_arrows() -> None:
    started = command(str(scan()), "--voxel-size", "0.5", *FAST, "--no-output")
    started["env"]["PYTHONIOENCODING"] = "ascii"
    done = subprocess.run(**started, capture_output=True)
    assert done.returncode == 0 and b"4?16" in done.stdout


def test_a_narrow_terminal_loses_no_digit() -> None:
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    started = command(str(scan()), "--voxel-size", "0.5", *FAST, "--no-output")
    started["env"].update(COLUMNS="40", TERM="xterm")
    with subprocess.Popen(**started, stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        shown = _read_all(leader)
    assert process.returncode == 0
    assert "0/4" in shown and "\x1b" in shown
    table = shown[shown.index("layer") :]
    assert "Traceback" not in shown and "…" not in table
    voxels = voxelize(points()[:, :3], points(), 0.5)
    pairs = int((reference.kernel_map(voxels.coords) >= 0).sum())
    # A cell that does not fit goes on in the next line.
    assert sum(map(table.count, f"{pairs:,}")) >= 2 * len(f"{pairs:,}")


def _read_all(leader: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux reports the end of a pseudo-terminal as an error
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    return b"".join(parts).decode(errors="replace")


def test_a_reader_that_goes_away_does_not_lose_the_features() -> None:
    started = command(str(scan()), "--voxel-size", "0.5", *FAST)
    with subprocess.Popen(**started, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert Path("scan-features.npz").is_file()


def test_interrupt_while_compiling() -> None:
    started = command(str(scan()), "--voxel-size", "0.5")
    started["env"]["SPCONV_CACHE_DIR"] = str(Path("empty").resolve())
    with subprocess.Popen(**started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        while not process.stdout.readline().startswith("net"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "spconv-run: interrupted\n"
    assert process.returncode == 130
    assert sorted(set(os.listdir()) - {"empty"}) == ["scan.bin"]
