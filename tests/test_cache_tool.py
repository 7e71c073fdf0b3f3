"""`spconv-cache`: what it prints, what it removes, its errors and exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spconv_compiler.cache import DiskCache
from spconv_compiler.cache_key import cache_key
from spconv_compiler.frame_options import FrameOptions
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.level_options import LevelMap, LevelOptions, MadeLevel, submanifold
from spconv_compiler.options import CompileOptions
from spconv_compiler.sparse_options import SparseOptions
from spconv_compiler.targets import get_target
from spconv_compiler.tools import cache as tool

REPOSITORY = Path(__file__).resolve().parent.parent
ONE = ConvGeometry((1, 1, 1))
PIPELINE = "canonicalize,cse," * 40


def parts(c_in: int, **changes: object) -> dict[str, object]:
    return {
        "kernel_size": (3, 3, 5),
        "c_in": c_in,
        "c_out": 128,
        "key_width": 64,
        "dtypes": ("bf16", "f32"),
        "schedule": {"name": "pairs_m16", "k_unroll": 4},
        "target": {"name": "gfx950", "wave": 64},
        "options": {"bias": False},
        "pipeline": PIPELINE + "end",
        "toolchain": {"flydsl": "0.5.0", "linker": "/a/ld.lld:1:2"},
        **changes,
    }


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    monkeypatch.setenv("SPCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SPCONV_CACHE_MAX_MB", "8")
    return DiskCache(tmp_path / "cache", 2**23)


def put(disk: DiskCache, entry_parts: dict[str, object], age_days: float = 0.0) -> str:
    key = cache_key(entry_parts)
    disk.put(key, {"kernel.co": bytes(3000), "kernel.s": b"s_endpgm"}, entry_parts)
    then = time.time() - age_days * 86400
    os.utime(disk.root / "v1" / key[:2] / key / "manifest.json", (then, then))
    return key


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = tool.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_has_one_line_per_kernel_the_latest_first(disk, capsys):
    old, new = put(disk, parts(16), age_days=3.2), put(disk, parts(32))
    code, output, errors = run(capsys, "list")
    assert (code, errors) == (0, "")
    header, first, second, total = output.splitlines()
    assert header.split() == "key kernel channels width dtype target schedule size last use".split()
    assert first.split()[:7] == [new[:10], "3x3x5", "32→128", "64", "bf16→f32", "gfx950", "pairs_m16"]
    assert first.endswith(" KB  now")
    assert second.startswith(old[:10]) and "16→128" in second and second.endswith("3 d ago")
    assert total.startswith("2 kernels, ") and total.endswith(f" of at most 8.0 MB, in {disk.root}")


def test_list_in_a_terminal_is_a_table_with_the_same_cells(disk, capsys, monkeypatch):
    key = put(disk, parts(16))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    code, output, _ = run(capsys, "list")
    assert code == 0
    for cell in (key[:10], "3x3x5", "16→128", "bf16→f32", "gfx950", "pairs_m16", "now", "1 kernel, "):
        assert cell in output


def test_list_of_an_empty_or_missing_cache(disk, capsys):
    expected = (0, f"0 kernels, 0 B of at most 8.0 MB, in {disk.root}\n", "")
    assert run(capsys, "list") == expected
    assert not disk.root.exists()
    put(disk, parts(16))
    disk.clear()
    assert run(capsys, "list") == expected


def test_list_survives_parts_it_does_not_know(disk, capsys):
    put(disk, {"options": {"kernel_size": [1, 1, 1], "c_in": 5, "c_out": 6, "dtype": "f32"}, "target": "cpu"})
    code, output, _ = run(capsys, "list")
    assert code == 0
    assert output.splitlines()[1].split()[1:7] == ["1x1x1", "5→6", "?", "f32", "cpu", "?"]


def test_list_reads_the_parts_that_the_compiler_gives(disk, capsys):
    for dtype, out_dtype in (("f32", "f32"), ("bf16", "f16")):
        options = CompileOptions((3, 3, 3), 7, 9, dtype=dtype, out_dtype=out_dtype, target="gfx950")
        target = get_target("gfx950")
        put(disk, {**options.key_parts(), "target": target.facts(), "toolchain": {"flydsl": "0.5.0"}})
    rows = [line.split()[1:7] for line in run(capsys, "list")[1].splitlines()[1:3]]
    assert rows == [
        ["3x3x3", "7→9", "32", "bf16→f16", "gfx950", "auto"],
        ["3x3x3", "7→9", "32", "f32", "gfx950", "auto"],
    ]


def test_list_says_what_kernels_of_maps_are(disk, capsys):
    """Operation, geometry and key width: they have no kernel_size, channels or dtype of their own."""
    down, up = ConvGeometry((3, 3, 3), (2, 2, 2), (0, 1, 1)), ConvGeometry((2, 2, 2), (2, 2, 2), transposed=True)
    levels = LevelOptions((MadeLevel(0, down),), (LevelMap(0, 1, down), LevelMap(0, 0, submanifold((3, 3, 3)))), "cpu")
    for options, wanted in (
        (SparseOptions("outputs", down, key_width=64), "outputs 3x3x3 s2 p0x1x1  -  64  -  gfx950  auto"),
        (SparseOptions("conv", up, c_in=5, c_out=6), "conv 2x2x2 s2 transposed  5→6  32  f32  gfx950  auto"),
        (SparseOptions("concat", ONE, c_in=5, c_out=6, dtype="bf16"), "concat 1x1x1  5→6  32  bf16→f32  gfx950  auto"),
        (levels, "level_maps 1 levels 2 maps  -  -  -  gfx950  auto"),
        (FrameOptions("gfx950"), "place_coords  -  -  -  gfx950  auto"),
    ):
        disk.clear()
        put(disk, {**options.key_parts(), "target": {"name": "gfx950"}, "toolchain": {"flydsl": "0.5.0"}})
        row = run(capsys, "list")[1].splitlines()[1]
        assert re.split("  +", row)[1:7] == wanted.split("  ")


def test_explain_one_prints_its_parts(disk, capsys):
    key = put(disk, parts(16))
    put(disk, parts(32))
    code, output, errors = run(capsys, "explain", key[:9].upper())
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0] == f"key = {key}"
    assert "files = kernel.co (2.9 KB), kernel.s (8 B)" in lines
    for line in ("kernel_size = [3,3,5]", "c_in = 16", 'target.name = "gfx950"', 'toolchain.flydsl = "0.5.0"'):
        assert line in lines
    (pipeline,) = [line for line in lines if line.startswith("pipeline")]
    assert pipeline.endswith(f"… ({len(PIPELINE) + 5} characters)")
    assert f'pipeline = "{PIPELINE}end"' in run(capsys, "explain", key, "--full")[1].splitlines()


def test_explain_two_prints_what_differs_and_only_that(disk, capsys):
    a = put(disk, parts(16))
    b = put(disk, parts(16, toolchain={"flydsl": "0.5.1"}, pipeline=PIPELINE + "END"))
    code, output, errors = run(capsys, "explain", a, b)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "pipeline",
        "toolchain.flydsl",
        "toolchain.linker",
    ]
    assert lines[1].startswith(f"  {a[:10]}: …") and lines[1].endswith('end"')
    assert lines[2].startswith(f"  {b[:10]}: …") and lines[2].endswith('END"')
    assert lines[4:6] == [f'  {a[:10]}: "0.5.0"', f'  {b[:10]}: "0.5.1"']
    assert lines[8] == f"  {b[:10]}: (absent)"
    assert run(capsys, "explain", a, a)[1] == f"{a[:10]} and {a[:10]} do not differ in any part\n"


def test_explain_wants_a_unique_prefix(disk, capsys):
    made = [put(disk, parts(c_in)) for c_in in range(1, 18)]
    shared = next(letter for letter in "0123456789abcdef" if sum(key[0] == letter for key in made) > 1)
    code, output, errors = run(capsys, "explain", shared)
    assert (code, output) == (1, "")
    assert f"kernels have a key that starts with '{shared}': " in errors
    assert all(key[:10] in errors for key in made if key.startswith(shared))
    code, output, errors = run(capsys, "explain", "xyz")
    assert (code, output) == (1, "")
    assert "no kernel has a key that starts with 'xyz'" in errors
    assert run(capsys, "explain", made[0], "xyz")[0] == 1


def test_clear_removes_all(disk, capsys):
    put(disk, parts(16))
    put(disk, parts(32))
    assert run(capsys, "clear") == (0, f"removed 2 kernels from {disk.root}\n", "")
    assert disk.entries() == []
    assert run(capsys, "clear") == (0, f"removed 0 kernels from {disk.root}\n", "")


def test_clear_older_than_goes_by_last_use(disk, capsys):
    keys = {age: put(disk, parts(16 + age), age_days=age) for age in (0, 1, 5, 9)}
    assert run(capsys, "clear", "--older-than", "4.5") == (0, f"removed 2 kernels from {disk.root}\n", "")
    assert [entry.key for entry in disk.entries()] == [keys[0], keys[1]]
    disk.get(keys[1])
    assert run(capsys, "clear", "--older-than", "0.5")[1] == f"removed 0 kernels from {disk.root}\n"
    assert run(capsys, "clear", "--older-than", "0")[1] == f"removed 2 kernels from {disk.root}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: list|explain|clear"),
        (["purge"], "invalid choice: 'purge'"),
        (["explain"], "required: A"),
        (["list", "--what"], "unrecognized arguments: --what"),
        (["clear", "--older-than", "-1"], "'-1' is not accepted; accepted: a number of days, 0 or more"),
        (["clear", "--older-than", "week"], "'week' is not accepted"),
        (["clear", "--older-than", "nan"], "'nan' is not accepted"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, message, disk, capsys):
    put(disk, parts(16))
    code, output, errors = run(capsys, *arguments)
    assert (code, output) == (2, "")
    assert message in errors
    assert len(disk.entries()) == 1


def test_help_exits_with_0(capsys):
    code, output, errors = run(capsys, "--help")
    assert (code, errors) == (0, "")
    assert all(word in output for word in ("list", "explain", "clear", "--dir"))


def test_dir_option_goes_before_the_variable(disk, capsys, tmp_path):
    put(disk, parts(16))
    other = DiskCache(tmp_path / "other", 2**23)
    put(other, parts(32))
    assert run(capsys, "--dir", str(other.root), "clear")[1] == f"removed 1 kernel from {other.root}\n"
    assert len(disk.entries()) == 1


def test_a_directory_that_is_none_is_an_error(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    for command in (["list"], ["explain", "a"], ["clear"]):
        code, output, errors = run(capsys, "--dir", str(tmp_path / "file"), *command)
        assert (code, output) == (1, "")
        assert f"the cache directory {tmp_path}/file is not a directory" in errors
    monkeypatch.setenv("SPCONV_CACHE_MAX_MB", "big")
    code, _, errors = run(capsys, "list")
    assert code == 1 and "SPCONV_CACHE_MAX_MB='big' is not accepted" in errors


def test_clear_says_when_it_cannot_remove(disk, capsys, monkeypatch):
    put(disk, parts(16))

    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.warns(UserWarning, match="Permission denied"):
        code, output, errors = run(capsys, "clear")
    assert (code, output) == (1, "")
    assert "removed 0 kernels; the rest of" in errors


def test_the_program_runs_alone_and_loads_nothing_heavy(disk):
    put(disk, parts(16))
    script = """
import sys
from spconv_compiler.tools.cache import main
code = main(["list"])
print(code, [name for name in ("torch", "numpy", "flydsl", "rich", "filelock") if name in sys.modules])
"""
    for encoding, channels in (("utf-8", "16→128"), ("ascii", "16?128")):
        output = subprocess.check_output(
            [sys.executable, "-c", script],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            encoding=encoding,
        )
        assert channels in output and output.endswith("\n0 []\n")
