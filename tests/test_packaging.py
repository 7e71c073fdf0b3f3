"""The wheel, built and installed elsewhere, works without the checkout; the checkout has no second identity."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "spconv_compiler", "passes", "dialect")
# What else the source distribution has: all that the tests read.
WITH_TESTS = (*SOURCES, "MANIFEST.in", ".gitignore", ".ci", "docs", "examples", "lit_tests", "tests")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def run(*command: str, cwd: pathlib.Path, path: pathlib.Path | None = None) -> str:
    """What a command prints, with only `path` added to the import path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def copy(repo: pathlib.Path, names: tuple[str, ...], folder: pathlib.Path) -> None:
    """Files and folders of the checkout, without what Python and lit have left in them."""
    left = shutil.ignore_patterns("__pycache__", "Output", ".lit_test_times.txt")
    for name in names:
        if (repo / name).is_dir():
            shutil.copytree(repo / name, folder / name, ignore=left)
        else:
            shutil.copy(repo / name, folder / name)


@pytest.fixture(scope="module")
def wheel(repo: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Built from a copy, because building leaves files behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    copy(repo, SOURCES, source)
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), ".", cwd=source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder that holds the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    run(*PIP, "install", "--no-deps", "--target", str(folder), str(wheel), cwd=folder)
    return folder


def test_the_wheel_holds_every_file_and_nothing_else(wheel: pathlib.Path, repo: pathlib.Path) -> None:
    expected = set()
    for name in ("spconv_compiler", "passes", "dialect"):
        for path in (repo / name).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".mlir", ".typed"):
                inside = path.relative_to(repo).as_posix()
                expected.add(inside if name == "spconv_compiler" else f"spconv_compiler/{inside}")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_source_distribution_holds_every_file(repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Tests and their helpers too: setuptools by itself takes tests/test_*.py alone."""
    source = tmp_path / "source"
    source.mkdir()
    copy(repo, WITH_TESTS, source)
    wanted = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert wanted - names == set()
    assert {name for name in names - wanted if ".egg-info/" not in name} == {"PKG-INFO", "setup.cfg"}


def test_the_installed_tools_run_in_an_empty_folder(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    listed = run(str(site / "bin" / "spconv-opt"), "--list-passes", cwd=tmp_path, path=site)
    assert "convert-spconv-to-stages\n    spconv → stages: " in listed
    (tmp_path / "a.mlir").write_text("func.func private @f(!spconv.coords<32>)")
    command = (
        sys.executable,
        "-m",
        "spconv_compiler.tools.opt",
        "a.mlir",
        "--to-level",
        "stages",
        "--target",
        "gfx950",
    )
    assert "!spconv.coords<32 : i64>" in run(*command, cwd=tmp_path, path=site)
    assert sorted(path.name for path in (site / "bin").iterdir()) == sorted(_scripts())


def _scripts() -> list[str]:
    return [f"spconv-{name}" for name in ("bench", "cache", "compile", "opt", "run")]


@pytest.mark.parametrize("script", _scripts())
def test_every_script_has_help(script: str, site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert run(str(site / "bin" / script), "--help", cwd=tmp_path, path=site).startswith(f"usage: {script}")


def test_the_installed_package_is_one_package(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = """
import importlib.util, spconv_compiler, spconv_compiler.passes.registry, spconv_compiler.dialect
print(spconv_compiler.__file__, spconv_compiler.passes.__file__, spconv_compiler.dialect.__file__)
print(importlib.util.find_spec("passes"), importlib.util.find_spec("dialect"))
"""
    files, specs = run(sys.executable, "-c", code, cwd=tmp_path, path=site).splitlines()
    assert all(file.startswith(str(site)) for file in files.split()) and len(files.split()) == 3
    assert specs == "None None"


@pytest.mark.parametrize("name", ["passes", "dialect"])
def test_parts_of_the_checkout_cannot_be_imported_under_a_second_name(name: str, repo: pathlib.Path) -> None:
    code = f"""
try:
    import {name}
except ImportError as error:
    print(error)
"""
    expected = f"import this package as spconv_compiler.{name}, not as {name}\n"
    assert run(sys.executable, "-c", code, cwd=repo, path=repo) == expected


def test_import_is_quick(repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """At most 0.3 s, beside the start of Python; the best of five, since other programs run too."""
    seconds: dict[str, float] = {}
    for code in ("pass", "import spconv_compiler") * 5:
        start = time.perf_counter()
        run(sys.executable, "-c", code, cwd=tmp_path, path=repo)
        seconds[code] = min(time.perf_counter() - start, seconds.get(code, 1e9))
    assert seconds["import spconv_compiler"] - seconds["pass"] <= 0.3
