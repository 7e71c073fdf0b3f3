"""Where the HIP runtime is looked for, and what is said when it is not there or not fit."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from hip_harness import Shim

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime import hip_library
from spconv_compiler.runtime.hip_library import HipLibrary, load_hip

SONAME = "libamdhip64.so.7"


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """A system without HIP, whatever this one has; returns its ROCM_PATH."""
    monkeypatch.delenv("SPCONV_HIP", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(hip_library, "_loaded_already", lambda: None)
    monkeypatch.setattr(hip_library, "_SONAMES", ("libamdhip64-of-tests.so",))
    (tmp_path / "lib").mkdir()
    return tmp_path


def test_none(nothing: pathlib.Path) -> None:
    with pytest.raises(LaunchError) as caught:
        load_hip()
    assert str(caught.value) == (
        f"no AMD GPU: libamdhip64 was not found in the loader's search path, {nothing}/lib (ROCM_PATH) or SPCONV_HIP; "
        "use target='gfx950-sim' to run on the simulator, or target='cpu'"
    )


def test_in_rocm_path(nothing: pathlib.Path, loaded_shim: Shim) -> None:
    path = nothing / "lib" / "libamdhip64-of-tests.so"
    path.symlink_to(loaded_shim.path)
    assert load_hip().path == str(path)


def test_a_library_that_does_not_load(nothing: pathlib.Path) -> None:
    path = nothing / "lib" / "libamdhip64-of-tests.so"
    path.write_bytes(b"no library")
    with pytest.raises(LaunchError, match=f"{re.escape(str(path))} does not load: .*target='cpu'"):
        load_hip()


def test_a_path_that_is_wrong(nothing: pathlib.Path, monkeypatch: pytest.MonkeyPatch, loaded_shim: Shim) -> None:
    """A wrong wish is not replaced by what would be found without it."""
    (nothing / "lib" / "libamdhip64-of-tests.so").symlink_to(loaded_shim.path)
    monkeypatch.setenv("SPCONV_HIP", str(nothing / "other.so"))
    with pytest.raises(LaunchError, match="no AMD GPU: SPCONV_HIP: .*other.so"):
        load_hip()


def test_a_library_that_is_too_old(loaded_shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hip_library._SIGNATURES, "hipNewerThanThis", ())
    with pytest.raises(LaunchError, match="has no hipNewerThanThis; accepted: HIP 6 or newer"):
        HipLibrary(str(loaded_shim.path)).call("hipNewerThanThis")


def test_the_copy_of_this_process_comes_first(loaded_shim: Shim, tmp_path: pathlib.Path) -> None:
    """torch brings its own HIP: another copy would know nothing of torch's memory."""
    path = tmp_path / SONAME
    shutil.copy(loaded_shim.path, path)
    program = f"""
import ctypes
ctypes.CDLL({str(path)!r})
from spconv_compiler.runtime.hip_library import load_hip
print(load_hip().path)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}\n"


def test_every_function_is_there(loaded_shim: Shim) -> None:
    """The shim has what the runtime calls, so that no path of it goes untested for want of a function."""
    library = HipLibrary(str(loaded_shim.path))
    for name in hip_library._SIGNATURES:
        assert callable(library.function(name))
