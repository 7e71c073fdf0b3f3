"""The toolchain's fingerprint: what changes it, what does not, and that it loads and starts nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spconv_compiler import toolchain
from spconv_compiler.errors import ToolchainError

REPOSITORY = Path(__file__).resolve().parent.parent

# Flags as Linux prints them, shortened, from an AMD Zen 3 and an Intel Sapphire Rapids.
ZEN3 = "fpu sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c abm sse4a bmi1 avx2 bmi2 vaes"
SAPPHIRE = ZEN3 + " avx512f avx512dq avx512cd avx512bw avx512vl avx_vnni avx512_bf16 avx512_fp16 amx_tile"


def cpuinfo(tmp_path: Path, *flags: str) -> Path:
    path = tmp_path / "cpuinfo"
    blocks = (f"processor\t: {i}\nmodel name\t: X\nflags\t\t: {f}\nbugs\t:\n\n" for i, f in enumerate(flags))
    path.write_text("".join(blocks))
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package with a source file, a dialect file, a nested folder and files that are no sources."""
    folder = tmp_path / "tree"
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    (folder / "a.py").write_text("x = 1\n")
    (folder / "d.irdl.mlir").write_text("irdl.dialect @spconv {}\n")
    (folder / "inner" / "b.py").write_text("y = 2\n")
    (folder / "inner" / "__pycache__" / "b.py").write_text("cached\n")
    (folder / "README.md").write_text("words\n")
    return folder


def digest(folder: Path) -> str:
    return toolchain.digest_of([("package", folder)])


def edit(path: str, text: str):
    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)

    return change


CHANGES = {
    "Python source": edit("a.py", "x = 2\n"),
    "dialect file": edit("d.irdl.mlir", "irdl.dialect @spconw {}\n"),
    "nested source": edit("inner/b.py", "y = 3\n"),
    "new source": edit("inner/c.py", ""),
    "removed source": lambda folder: (folder / "a.py").unlink(),
    "renamed source": lambda folder: (folder / "a.py").rename(folder / "z.py"),
    "moved source": lambda folder: (folder / "inner" / "b.py").rename(folder / "b.py"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_digest_sees(change, tree):
    before = digest(tree)
    change(tree)
    assert digest(tree) != before


def test_digest_sees_text_that_moves_from_one_file_to_the_next(tree):
    (tree / "a.py").write_text("12")
    (tree / "b.py").write_text("3")
    before = digest(tree)
    (tree / "a.py").write_text("1")
    (tree / "b.py").write_text("23")
    assert digest(tree) != before


def test_digest_sees_a_file_that_moves_into_another(tree):
    (tree / "a.py").write_text("1")
    (tree / "b.py").write_text("2")
    before = digest(tree)
    (tree / "b.py").unlink()
    for between in ("package/./b.py\n", "package/./b.py 1\n", "package/b.py\n", "package/b.py 1\n"):
        (tree / "a.py").write_text(f"1{between}2")
        assert digest(tree) != before


def test_digest_does_not_depend_on_the_order_of_the_directory(tree, monkeypatch):
    (tree / "z.py").write_text("z")
    walk, digests = os.walk, set()
    for backwards in (False, True):

        def ordered(top: Path, backwards: bool = backwards):
            for place, folders, files in walk(top):
                yield place, folders, sorted(files, reverse=backwards)

        monkeypatch.setattr(os, "walk", ordered)
        digests.add(digest(tree))
    assert len(digests) == 1


def test_digest_ignores_what_is_no_source_and_where_the_package_lies(tree, tmp_path):
    before = digest(tree)
    (tree / "README.md").write_text("other words\n")
    (tree / "inner" / "__pycache__" / "b.py").write_text("other\n")
    (tree / "a.cpython-311.pyc").write_bytes(b"1")
    assert digest(tree) == before
    shutil.copytree(tree, tmp_path / "elsewhere")
    assert digest(tmp_path / "elsewhere") == before
    assert toolchain.digest_of([("other", tree)]) != before


def test_digest_ignores_what_no_compilation_imports(tree):
    before = digest(tree)
    for name in toolchain.OUTSIDE:
        edit(f"{name}/c.py", "z = 1\n")(tree)
    assert digest(tree) == before
    # Of the package itself only: a folder of this name further down counts.
    (tree / "inner" / toolchain.OUTSIDE[0]).mkdir()
    edit(f"inner/{toolchain.OUTSIDE[0]}/c.py", "z = 1\n")(tree)
    assert digest(tree) != before


_COMPILE_ALL = """
import sys
from spconv_compiler import compiler, toolchain
for target in ("cpu", "gfx950", "sm_90"):
    compiler.compile_conv(3, 8, 8, dtype="bf16", target=target)
print(sorted(name for name in sys.modules if name.startswith("spconv_compiler.") and name.count(".") == 1))
outside = tuple(f"spconv_compiler.{name}" for name in toolchain.OUTSIDE)
print(sorted(name for name in sys.modules if name in outside or name.startswith(tuple(f"{o}." for o in outside))))
"""


def test_compiling_imports_nothing_from_outside():
    """So that what the digest leaves out cannot change what is compiled."""
    environment = {**os.environ, "SPCONV_CACHE": "off"}
    command = [sys.executable, "-c", _COMPILE_ALL]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    imported, outside = done.stdout.splitlines()
    assert "'spconv_compiler.pipeline'" in imported and "'spconv_compiler.schedules'" in imported
    assert outside == "[]"


def test_an_installed_tree_has_the_digest_of_a_checkout(tree, tmp_path):
    """Installed, passes/ and dialect/ lie inside spconv_compiler/; in a checkout beside it."""
    for name in ("passes", "dialect"):
        shutil.copytree(tree, tmp_path / name)
    checkout = [("m", tree), ("m.passes", tmp_path / "passes"), ("m.dialect", tmp_path / "dialect")]
    before = toolchain.digest_of(checkout)
    for name in ("passes", "dialect"):
        (tmp_path / name).rename(tree / name)
    installed = [("m", tree), ("m.passes", tree / "passes"), ("m.dialect", tree / "dialect")]
    assert toolchain.digest_of(installed) == before


def test_sources_digest_covers_the_three_packages():
    folders = [
        ("spconv_compiler", REPOSITORY / "spconv_compiler"),
        ("spconv_compiler.passes", REPOSITORY / "passes"),
        ("spconv_compiler.dialect", REPOSITORY / "dialect"),
    ]
    if Path(toolchain.__file__).parent != folders[0][1]:
        pytest.skip("the installed package is tested, not this checkout")
    toolchain.sources_digest.cache_clear()
    whole = toolchain.sources_digest()
    assert whole == toolchain.digest_of(folders)
    assert all(toolchain.digest_of(folders[:i] + folders[i + 1 :]) != whole for i in range(3))


def test_flydsl_identity_is_that_of_the_installed_wheel():
    version, native = toolchain.flydsl_identity()
    assert version == importlib.metadata.version("flydsl")
    spec = importlib.util.find_spec("flydsl")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "_mlir" / "_mlir_libs" / "_native_digest.py"
    listed = runpy.run_path(str(path))["NATIVE_SHA256"]
    assert toolchain._read_constant(path, "NATIVE_SHA256") == listed and len(listed) > 5
    assert len(native) == 64


def fake_flydsl(folder: Path, digests: str) -> None:
    libraries = folder / "flydsl" / "_mlir" / "_mlir_libs"
    libraries.mkdir(parents=True)
    (folder / "flydsl" / "__init__.py").write_text('raise SystemExit("imported")\n__version__ = "0.5.9"\n')
    (libraries / "_native_digest.py").write_text(digests)


@pytest.fixture
def path_for_flydsl(tmp_path, monkeypatch):
    """An import path on which a test may put a flydsl of its own."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "flydsl", raising=False)
    importlib.invalidate_caches()
    toolchain.flydsl_identity.cache_clear()
    yield tmp_path
    toolchain.flydsl_identity.cache_clear()


def test_flydsl_identity_changes_with_any_native_library(path_for_flydsl):
    identities = []
    listings = ('{"a.so": "1"}', '{"a.so": "2"}', '{"b.so": "1"}', '{"a.so": "1", "b.so": "1"}')
    for index, text in enumerate(listings):
        sys.path[:] = [str(path_for_flydsl / str(index))]
        fake_flydsl(path_for_flydsl / str(index), f"NATIVE_SHA256 = {text}\n")
        toolchain.flydsl_identity.cache_clear()
        identities.append(toolchain.flydsl_identity())
    assert len(set(identities)) == 4
    assert {version for version, _ in identities} == {"0.5.9"}


@pytest.mark.parametrize("digests", ["", "NATIVE_SHA256 = f()", "NATIVE_SHA256 = 'x'", "NATIVE_SHA256 = {"])
def test_flydsl_of_another_layout_is_an_error(digests, path_for_flydsl):
    fake_flydsl(path_for_flydsl, digests)
    with pytest.raises(ToolchainError, match="unknown layout; install flydsl>=0.5"):
        toolchain.flydsl_identity()


def test_missing_flydsl_is_an_error(path_for_flydsl):
    with pytest.raises(ToolchainError, match="flydsl is not installed"):
        toolchain.flydsl_identity()


def test_cpu_features_are_those_that_code_may_use(tmp_path):
    features = toolchain.host_cpu_features(cpuinfo(tmp_path, ZEN3, ZEN3))
    expected = "ssse3 fma sse4.1 sse4.2 movbe popcnt avx f16c lzcnt bmi avx2 bmi2"
    assert features == frozenset(expected.split())


def test_avx512_and_amx_are_features(tmp_path):
    features = toolchain.host_cpu_features(cpuinfo(tmp_path, SAPPHIRE))
    assert {"avx512f", "avx512vl", "avx512bf16", "avx512fp16", "avxvnni", "amx-tile"} <= features


def test_cpu_features_are_empty_without_x86_flags(tmp_path):
    assert toolchain.host_cpu_features(tmp_path / "missing") == frozenset()
    arm = tmp_path / "arm"
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd sve\n")
    assert toolchain.host_cpu_features(arm) == frozenset()


def test_fingerprint_has_the_cpu_only_when_asked():
    without, with_cpu = toolchain.fingerprint(), toolchain.fingerprint(host_cpu=True)
    assert set(without) == {"sources", "flydsl", "flydsl_native", "linker"}
    assert with_cpu == {**without, "host_cpu": " ".join(sorted(toolchain.host_cpu_features()))}


def test_fingerprint_imports_no_mlir_and_starts_nothing_once_the_linker_is_known(tmp_path, monkeypatch):
    script = """
import sys
started = []
def hook(event, args):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"):
        started.append(event)
sys.addaudithook(hook)
from spconv_compiler import toolchain
print(toolchain.fingerprint(host_cpu=True)["linker"])
print(len(started), [name for name in sys.modules if name.partition(".")[0] in ("flydsl", "torch", "numpy")])
"""
    monkeypatch.setenv("SPCONV_CACHE_DIR", str(tmp_path))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert outputs[1][0] == outputs[0][0]
    assert outputs[1][1] == "0 []"
