"""nets/reno.py: the octree, the network against the plain reference, and the published bits of real scans."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spconv_compiler import driver
from spconv_compiler.errors import InputError
from spconv_compiler.io import read_points
from spconv_compiler.nets import reno
from spconv_compiler.nets.reno_pyramid import POS_Q, Level, pyramid, quantize
from spconv_compiler.nets.reno_reference import plain_convolution
from spconv_compiler.tools.run import main

CHECKPOINT, PUBLISHED = "KITTIDetection.ckpt.pt", "published_bits_kitti_000001_000002.csv"
# Parts of the published bits.
TOLERANCE = {"f32": 1e-3, "f16": 1e-3, "bf16": 1.5e-3}


def random_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """A checkpoint whose activations keep their size."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in reno._shapes().items():
        scale = 0.15 if name.endswith("kernel") else 0.5
        tensors[name] = scale * torch.randn(shape, generator=generator)
    return tensors


def random_scan(points: int = 4000, seed: int = 0) -> Any:
    """Points on two walls and on the ground, metres."""
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-20.0, 20.0, (points, 3))
    xyz[: points // 3, 0], xyz[points // 3 : points // 2, 1], xyz[points // 2 :, 2] = 15.0, -12.0, -1.7
    return xyz.astype(np.float32)


def frame(shared: Path, name: str, step: int) -> list[Level]:
    return pyramid(quantize(read_points(shared / "data" / "kitti" / f"{name}.bin").xyz, step))


def published(shared: Path) -> dict[tuple[str, int], int]:
    with (shared / "weights" / "reno" / PUBLISHED).open() as file:
        rows = list(csv.DictReader(file))
    return {(row["file_name"].removesuffix("_ori"), int(row["posQ"])): int(row["bits sum"]) for row in rows}


def coded(levels: list[Level], tensors: dict[str, torch.Tensor], **options: Any) -> list[reno.LevelBits]:
    return list(reno.Reno(tensors, **options).code(levels))


@functools.cache
def plain_result() -> tuple[list[Level], list[reno.LevelBits]]:
    """A small scan's octree, and what the plain convolution makes of it in f32."""
    levels = pyramid(quantize(random_scan(2000), 400))
    return levels, coded(levels, random_tensors(), convolve=plain_convolution())


def test_cells_are_rounded_as_published() -> None:
    xyz = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.031, -0.033, 1.0]], np.float32)
    # 131072 / 64 = 2048; ties go to the even cell.
    assert quantize(xyz, 64).tolist() == [[2048, 2048, 2048], [2064, 2047, 2048]]
    half = np.array([[0.032, 0.096, 0.0]], np.float32)
    assert quantize(half, 64).tolist() == [[2048, 2050, 2048]]


def test_pyramid_equals_a_dictionary() -> None:
    levels = pyramid(quantize(random_scan(), 200))
    assert len(levels[0]) < 64 <= len(levels[1]) and levels[-1].codes is None
    for above, level in zip(levels, levels[1:], strict=False):
        assert above.codes is not None
        children: dict[tuple[int, ...], int] = {}
        for row, (batch, z, y, x) in enumerate(level.coords.tolist()):
            bit = (x & 1) + 2 * (y & 1) + 4 * (z & 1)
            parent = (batch, z // 2, y // 2, x // 2)
            children[parent] = children.get(parent, 0) | 1 << bit
            assert tuple(above.coords[level.parents[row]]) == parent and level.children[row] == bit
        assert {tuple(c): int(code) for c, code in zip(above.coords.tolist(), above.codes, strict=True)} == children


@pytest.mark.parametrize("cells", [[[0, 0, 0]], [[-3, -1, 5], [7, 7, 7]]])
def test_few_cells_have_one_level_above(cells: list[list[int]]) -> None:
    levels = pyramid(np.array(cells, np.int64))
    assert len(levels) == 2 and len(levels[1]) == len(cells)
    assert reno.file_bits(levels, coded(levels, random_tensors())) == 8 * (8 + 13 * len(levels[0]))


@pytest.mark.parametrize(("dtype", "limit"), [("f32", 1e-5), ("f16", 2e-2), ("bf16", 8e-2)])
def test_bits_equal_those_of_the_plain_convolution(dtype: str, limit: float) -> None:
    levels, expected = plain_result()
    found = coded(levels, random_tensors(), dtype=dtype, target="cpu")
    assert len(found) == len(levels) - 2 >= 2
    for one, other in zip(found, expected, strict=True):
        assert one.voxels == other.voxels
        assert one.streams == pytest.approx(other.streams, rel=limit)


def test_the_ten_convolutions_of_a_level_share_one_map(monkeypatch: pytest.MonkeyPatch) -> None:
    levels, built, runs = pyramid(quantize(random_scan(), 300)), list[int](), list[int]()
    build, run = driver.ConvKernel.build_map, driver.ConvKernel.run

    def counting(self: Any, points: Any, box: Any) -> Any:
        built.append(points.shape[0])
        return build(self, points, box)

    def running(self: Any, *arguments: Any) -> Any:
        runs.append(1)
        return run(self, *arguments)

    monkeypatch.setattr(driver.ConvKernel, "build_map", counting)
    monkeypatch.setattr(driver.ConvKernel, "run", running)
    coded(levels, random_tensors(), target="cpu")
    assert built == [len(level) for level in levels[:-1]]
    assert len(runs) == 10 * (len(levels) - 2)


@pytest.mark.parametrize(("dtype", "expected"), [("f32", 417_349), ("bf16", 417_360)])
def test_published_bits(shared_dir: Path, dtype: str, expected: int) -> None:
    tensors = reno.load_checkpoint(shared_dir / "weights" / "reno" / CHECKPOINT)
    levels = frame(shared_dir, "000001", 64)
    found = coded(levels, tensors, dtype=dtype, target="cpu")
    total = published(shared_dir)["000001", 64]
    assert abs(reno.file_bits(levels, found) / total - 1.0) < TOLERANCE[dtype]
    # What the same network gave in plain torch, without the rounding of streams to bytes.
    header = 8 * (2 + 4 + 13 * len(levels[0]) + 2 + 8 * len(found))
    assert header + sum(level.bits for level in found) == pytest.approx(expected, abs=1 if dtype == "f32" else 12)
    if dtype == "f32":
        swapped = dict(tensors)
        for name in (name for name in tensors if name.endswith("kernel")):
            swapped[name] = tensors[name][[1, 0, *range(2, 27)]]
        wrong = reno.file_bits(levels, coded(levels, swapped, target="cpu"))
        assert 1e-3 < wrong / total - 1.0 < 3e-3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", ["000001", "000002"])
def test_published_bits_at_all_depths(shared_dir: Path, name: str, dtype: str) -> None:
    tensors = reno.load_checkpoint(shared_dir / "weights" / "reno" / CHECKPOINT)
    known = published(shared_dir)
    for step in POS_Q:
        levels = frame(shared_dir, name, step)
        bits = reno.file_bits(levels, coded(levels, tensors, dtype=dtype, target="cpu"))
        assert abs(bits / known[name, step] - 1.0) < TOLERANCE[dtype], (step, bits)


@pytest.mark.parametrize(
    ("dtype", "step"),
    [
        ("bf16", 512),
        pytest.param("f16", 512, marks=pytest.mark.slow),
        pytest.param("f32", 512, marks=pytest.mark.slow),
        pytest.param("bf16", 256, marks=pytest.mark.slow),
    ],
)
def test_published_bits_on_the_simulator(shared_dir: Path, dtype: str, step: int) -> None:
    tensors = reno.load_checkpoint(shared_dir / "weights" / "reno" / CHECKPOINT)
    levels = frame(shared_dir, "000002", step)
    found = coded(levels, tensors, dtype=dtype, target="gfx950-sim")
    bits = reno.file_bits(levels, found)
    assert abs(bits / published(shared_dir)["000002", step] - 1.0) < TOLERANCE[dtype]
    for one, other in zip(found, coded(levels, tensors, dtype=dtype, target="cpu"), strict=True):
        assert one.streams == pytest.approx(other.streams, rel=1e-3)


def save(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    tensors = random_tensors()
    right = save(tmp_path / "right.pt", tensors)
    assert torch.equal(reno.load_checkpoint(right)["prior_resnet.0.kernel"], tensors["prior_resnet.0.kernel"])
    short = dict(tensors)
    del short["pred_head_s1.2.bias"]
    turned = tensors | {"target_resnet.2.conv0.kernel": tensors["target_resnet.2.conv0.kernel"][:9]}
    (tmp_path / "text.pt").write_text("no checkpoint")
    cases = [
        (tmp_path / "missing.pt", "cannot be read as a checkpoint"),
        (tmp_path / "text.pt", "cannot be read as a checkpoint"),
        (save(tmp_path / "list.pt", [1]), "holds a list"),
        (save(tmp_path / "short.pt", short), "pred_head_s1.2.bias is missing"),
        (save(tmp_path / "turned.pt", turned), r"conv0.kernel is \[9, 32, 32\]; .* has \[27, 32, 32\]"),
    ]
    for path, message in cases:
        with pytest.raises(InputError, match=message):
            reno.load_checkpoint(path)


def test_inputs_that_are_refused() -> None:
    with pytest.raises(InputError, match="pos_q is 0"):
        quantize(random_scan(), 0)
    with pytest.raises(InputError, match="no point"):
        quantize(np.zeros((0, 3), np.float32), 64)
    with pytest.raises(InputError, match=r"accepted: below 2\^20"):
        quantize(np.full((1, 3), 9000.0, np.float32), 4)
    with pytest.raises(InputError, match="dtype is 'f64'"):
        reno.Reno(random_tensors(), dtype="f64")


def test_tool_prints_the_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "scan.npy", random_scan(1500))
    weights = str(save(tmp_path / "ckpt.pt", random_tensors()))
    command = [str(tmp_path / "scan.npy"), "--net", "reno", "--weights", weights, "--target", "cpu"]
    assert main([*command, "--pos-q", "800,400", "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for step in (800, 400):
        levels = pyramid(quantize(random_scan(1500), step))
        bits = reno.file_bits(levels, coded(levels, random_tensors(), target="cpu"))
        row = next(line.split() for line in lines if line.startswith(f"{step} "))
        assert row[1] == str(len(levels) - 2) and row[4] == f"{bits:,}" and row[5] == f"{bits / 1500:.4f}"
    assert sum(line.startswith("check     posQ") for line in lines) == 2
    assert main([*command, "--pos-q", "800"]) == 0
    assert "low bits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--net", "reno"], "--net reno needs --weights"),
        (["--net", "reno", "--weights", "a.pt", "--pos-q", "64,x"], "argument --pos-q: 'x'"),
        (["--net", "reno", "--weights", "a.pt", "--out", "o.npz"], "makes bits and writes no features"),
        (["--net", "small", "--weights", "a.pt"], "argument --weights: small has none"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan.bin", *arguments]) == 2
    assert message in capsys.readouterr().err
