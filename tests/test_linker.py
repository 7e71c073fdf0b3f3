"""Finding ld.lld, the toolkit folder, and linking: stand-in linkers for the search, a real one for links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spconv_compiler import env, linker
from spconv_compiler.errors import CodegenError, ToolchainError

REPOSITORY = Path(__file__).resolve().parent.parent
MACHINE = {name: os.environ.get(name, "") for name in ("SPCONV_LLD", "ROCM_PATH", "PATH")}
find_zig = linker._zig


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake(path: Path, version: str = "LLD 20.1.0 (compatible with GNU linkers)") -> Path:
    """A stand-in that answers --version, and writes a line to `<path>.log` each time it is started."""
    return write_program(path, f'echo "$@" >> "{path}.log"\necho "{version}"')


def starts(path: Path) -> int:
    log = path.with_name(path.name + ".log")
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture(autouse=True)
def nothing_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any linker, with an empty cache and nothing remembered; tests add to it."""
    monkeypatch.delenv("SPCONV_LLD", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SPCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(linker, "_zig", lambda: None)
    monkeypatch.setattr(linker, "_versions", {})
    monkeypatch.setattr(linker, "_private_toolkits", {})


def forget() -> None:
    """As if a new process began."""
    linker._versions.clear()


def test_search_order(tmp_path, monkeypatch):
    zig = fake(tmp_path / "zig", "LLD 20.0.1")
    monkeypatch.setattr(linker, "_zig", lambda: zig)
    found = linker.find_linker()
    assert (found.path, found.arguments, found.source) == (zig, ("ld.lld",), "ziglang wheel")
    assert (tmp_path / "zig.log").read_text() == "ld.lld --version\n"

    for number, name in enumerate(("ld.lld-19", "ld.lld-22", "ld.lld")):
        path = fake(tmp_path / "bin" / name, f"LLD 20.1.{number}")
        found = linker.find_linker()
        assert (found.path, found.arguments, found.source) == (path, (), "PATH")
        assert found.version == linker.linker_version() == f"LLD 20.1.{number}"

    rocm = fake(tmp_path / "rocm" / "llvm" / "bin" / "ld.lld", "AMD LLD 20.0.0 (abc)")
    assert (linker.find_linker().path, linker.find_linker().source) == (rocm, "ROCm")

    explicit = fake(tmp_path / "my lld")
    monkeypatch.setenv("SPCONV_LLD", str(explicit))
    assert (linker.find_linker().path, linker.find_linker().source) == (explicit, "SPCONV_LLD")


def test_nothing_found_names_the_four_places(tmp_path):
    with pytest.raises(ToolchainError) as caught:
        linker.find_linker()
    text = str(caught.value)
    for expected in (
        "SPCONV_LLD: not set",
        f"ROCm: {tmp_path}/rocm/llvm/bin/ld.lld does not exist",
        "PATH: none of ld.lld, ld.lld-24 … ld.lld-19",
        "ziglang wheel: the module ziglang is not installed",
        "pip install ziglang",
    ):
        assert expected in text
    assert linker.linker_identity() == "missing"


def test_unusable_ones_are_passed_over_and_named(tmp_path, monkeypatch):
    fake(tmp_path / "bin" / "ld.lld", "LLD 18.1.3 (compatible with GNU linkers)")
    write_program(tmp_path / "rocm" / "llvm" / "bin" / "ld.lld", "exit 3")
    with pytest.raises(ToolchainError) as caught:
        linker.find_linker()
    assert f"PATH: {tmp_path}/bin/ld.lld is LLD 18, too old; accepted: 19 or newer" in str(caught.value)
    assert f"ROCm: {tmp_path}/rocm/llvm/bin/ld.lld --version fails with exit code 3" in str(caught.value)

    good = fake(tmp_path / "bin" / "ld.lld-21")
    assert linker.find_linker().path == good


EXPLICIT = {
    "missing": (lambda path: None, "No such file or directory"),
    "a folder": (lambda path: path.mkdir(), "is not an executable file"),
    "not executable": (lambda path: path.write_text("text"), "is not an executable file"),
    "not a program": (lambda path: (path.write_text("text"), path.chmod(0o755)), "does not run"),
    "not LLD": (lambda path: fake(path, "GNU ld 2.40"), "is not LLD: its --version says 'GNU ld 2.40'"),
    "too old": (lambda path: fake(path, "LLD 17.0.6"), "is LLD 17, too old"),
    "failing": (lambda path: write_program(path, "exit 1"), "fails with exit code 1"),
}


@pytest.mark.parametrize(("make", "message"), EXPLICIT.values(), ids=EXPLICIT.keys())
def test_an_unusable_explicit_linker_is_an_error_and_not_passed_over(make, message, tmp_path, monkeypatch):
    fake(tmp_path / "bin" / "ld.lld")
    make(tmp_path / "mine")
    monkeypatch.setenv("SPCONV_LLD", str(tmp_path / "mine"))
    for function in (linker.find_linker, linker.linker_identity, linker.toolkit_dir):
        with pytest.raises(ToolchainError) as caught:
            function()
        assert str(caught.value).startswith(f"SPCONV_LLD: {tmp_path}/mine")
        assert message in str(caught.value)


def test_version_is_asked_once_for_all_processes(tmp_path):
    path = fake(tmp_path / "bin" / "ld.lld")
    for _ in range(3):
        forget()
        assert linker.linker_version().startswith("LLD 20.1.0")
        linker.linker_identity()
    assert starts(path) == 1


def test_version_of_an_old_linker_is_remembered_too(tmp_path):
    old, new = fake(tmp_path / "bin" / "ld.lld", "LLD 14.0.0"), fake(tmp_path / "bin" / "ld.lld-20")
    for _ in range(3):
        forget()
        assert linker.find_linker().path == new
    assert (starts(old), starts(new)) == (1, 1)


def test_a_replaced_linker_is_noticed(tmp_path):
    path = fake(tmp_path / "bin" / "ld.lld")
    before = linker.find_linker()
    fake(path, "LLD 21.1.0 (compatible with GNU linkers)")
    os.utime(path, ns=(1, 1))
    after = linker.find_linker()
    assert after.identity != before.identity
    assert after.version == "LLD 21.1.0 (compatible with GNU linkers)"


def test_without_a_writable_cache_each_process_asks(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPCONV_CACHE_DIR", str(tmp_path / "file" / "cache"))
    path = fake(tmp_path / "bin" / "ld.lld")
    linker.find_linker()
    linker.find_linker()
    assert starts(path) == 1
    forget()
    assert linker.find_linker().version.startswith("LLD 20.1.0")
    assert starts(path) == 2


def test_a_damaged_record_is_not_believed(tmp_path):
    path = fake(tmp_path / "bin" / "ld.lld")
    linker.find_linker()
    for record in (tmp_path / "cache" / "linkers").iterdir():
        for damage in (b"", b"LLD 99.0.0", b"/other/ld.lld:1:2\nLLD 99.0.0", b"\xff\xfe"):
            record.write_bytes(damage)
            forget()
            assert linker.linker_version().startswith("LLD 20.1.0")
    assert starts(path) == 5


def test_the_wheel_is_found_without_importing_it(monkeypatch, tmp_path):
    package = tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise SystemExit("imported")')
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert find_zig() == package / "zig"
    monkeypatch.setattr(sys, "path", [])
    assert find_zig() is None


def run_toolkit(folder: Path) -> str:
    return subprocess.check_output([folder / "llvm" / "bin" / "ld.lld", "a b", "$c", "--version"], text=True)


def test_toolkit_of_a_plain_linker_is_a_link(tmp_path):
    path = fake(tmp_path / "bin" / "ld.lld")
    folder = linker.toolkit_dir()
    assert folder.is_relative_to(tmp_path / "cache")
    assert (folder / "llvm" / "bin" / "ld.lld").resolve() == path
    assert linker.toolkit_dir() == folder


def test_toolkit_of_zig_is_a_wrapper_that_passes_arguments_on(tmp_path, monkeypatch):
    zig = write_program(tmp_path / "a 'quoted' $dir" / "zig", 'printf "LLD 20.0.0"; printf "<%s>" "$@"')
    monkeypatch.setattr(linker, "_zig", lambda: zig)
    monkeypatch.setenv("SPCONV_CACHE_DIR", str(tmp_path / "cache with space"))
    assert run_toolkit(linker.toolkit_dir()) == "LLD 20.0.0<ld.lld><a b><$c><--version>"


def test_toolkit_of_rocm_is_rocm_itself(tmp_path):
    fake(tmp_path / "rocm" / "llvm" / "bin" / "ld.lld")
    assert linker.toolkit_dir() == tmp_path / "rocm"


def test_toolkit_changes_with_the_linker(tmp_path, monkeypatch):
    first = write_program(tmp_path / "1" / "zig", 'echo "LLD 20.0.1"')
    second = write_program(tmp_path / "2" / "zig", 'echo "LLD 20.0.2"')
    for zig, version in ((first, "LLD 20.0.1"), (second, "LLD 20.0.2"), (first, "LLD 20.0.1")):
        monkeypatch.setattr(linker, "_zig", lambda zig=zig: zig)
        assert run_toolkit(linker.toolkit_dir()).strip() == version


DAMAGE = {
    "wrapper cut short": lambda entry: entry.write_text("#!/bin/sh\n"),
    "wrapper missing": lambda entry: entry.unlink(),
    "wrapper not executable": lambda entry: entry.chmod(0o600),
    "folder emptied": lambda entry: shutil.rmtree(entry.parent),
    "file in place of the folder": lambda entry: (
        shutil.rmtree(entry.parents[2]),
        entry.parents[2].write_text(""),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_toolkit_is_made_anew(damage, tmp_path, monkeypatch):
    zig = write_program(tmp_path / "zig", 'echo "LLD 20.0.0"')
    monkeypatch.setattr(linker, "_zig", lambda: zig)
    folder = linker.toolkit_dir()
    damage(folder / "llvm" / "bin" / "ld.lld")
    assert linker.toolkit_dir() == folder
    assert run_toolkit(folder) == "LLD 20.0.0\n"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("place", ["a file in the way", "no home directory", "under /proc"])
def test_toolkit_without_a_usable_cache_is_temporary(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    if place == "no home directory":
        monkeypatch.setattr(env, "CACHE_DIR", env.Variable("UNSET", Path, lambda: None, "", ""))
    else:
        root = tmp_path / "file" if place == "a file in the way" else Path("/proc/spconv")
        monkeypatch.setenv("SPCONV_CACHE_DIR", str(root))
    path = fake(tmp_path / "bin" / "ld.lld")
    folder = linker.toolkit_dir()
    assert (folder / "llvm" / "bin" / "ld.lld").resolve() == path
    assert linker.toolkit_dir() == folder
    shutil.rmtree(folder)
    again = linker.toolkit_dir()
    assert (again / "llvm" / "bin" / "ld.lld").resolve() == path


def test_a_temporary_toolkit_goes_with_its_process_but_not_with_a_forked_child(tmp_path, monkeypatch):
    path = fake(tmp_path / "bin" / "ld.lld")
    script = """
import os, sys
from spconv_compiler import linker
folder = linker.toolkit_dir()
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(folder, folder.exists())
"""
    monkeypatch.setenv("SPCONV_LLD", str(path))
    monkeypatch.setenv("SPCONV_CACHE_DIR", "/proc/spconv")
    output = subprocess.check_output([sys.executable, "-c", script], cwd=REPOSITORY, text=True)
    folder, existed = output.split()
    assert existed == "True"
    assert not Path(folder).exists()


def test_processes_make_one_toolkit_together(tmp_path, monkeypatch):
    path = fake(tmp_path / "my lld")
    script = "from spconv_compiler import linker; input(); print(linker.toolkit_dir())"
    monkeypatch.setenv("SPCONV_LLD", str(path))
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    children = [
        subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) for _ in range(4)
    ]
    folders = {child.communicate("go\n", timeout=60)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0] * 4
    (folder,) = folders
    assert folder.startswith(str(tmp_path / "cache"))
    assert [str(path) for path in (tmp_path / "cache" / "toolkit").iterdir()] == [folder]


def test_threads_make_one_toolkit_together(tmp_path):
    fake(tmp_path / "bin" / "ld.lld")
    barrier, folders = threading.Barrier(8), []

    def work() -> None:
        barrier.wait()
        folders.append(linker.toolkit_dir())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 8 and len(set(folders)) == 1
    assert list((tmp_path / "cache" / "toolkit").iterdir()) == [folders[0]]


def test_a_linker_that_dies_half_way_leaves_nothing(tmp_path, monkeypatch):
    script = 'case "$1" in --version) echo "LLD 20.0.0";; *) echo half > "$3"; echo "no space" >&2; exit 1;; esac'
    monkeypatch.setenv("SPCONV_LLD", str(write_program(tmp_path / "lld", script)))
    (tmp_path / "out").mkdir()
    with pytest.raises(CodegenError, match="LLD 20.0.0 from SPCONV_LLD failed with exit code 1: no space"):
        linker.link_shared([tmp_path / "k.o"], tmp_path / "out" / "k.so")
    assert list((tmp_path / "out").iterdir()) == []
