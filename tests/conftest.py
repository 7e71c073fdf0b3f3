"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import pathlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hip_harness import Shim
    from hip_raw import Raw

    from spconv_compiler.cache import DiskCache
    from spconv_compiler.runtime.hip import Stream
    from spconv_compiler.runtime.hip_device import HipDevice
    from spconv_compiler.runtime.hip_library import HipLibrary

REPO = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repo() -> pathlib.Path:
    """The root of the checkout."""
    return REPO


@pytest.fixture(scope="session")
def shared_dir() -> pathlib.Path:
    """The folder `shared` beside the checkout, with real frames in data/ and weights in weights/."""
    folder = REPO.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no real data: there is no folder {folder}")
    return folder


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the user's settings and disk cache out of the tests; programs that tests start find the package."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SPCONV_")]:
            patch.delenv(name)
        patch.setenv("SPCONV_CACHE_DIR", str(_shared_folder(tmp_path_factory, "cache")))
        patch.setenv("PYTHONPATH", str(REPO), prepend=os.pathsep)
        yield


def _shared_folder(factory: pytest.TempPathFactory, name: str) -> pathlib.Path:
    """A folder of this run; one for all processes that pytest-xdist starts."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def without_gradients() -> Iterator[None]:
    """torch.no_grad() around a test."""
    import torch

    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def loaded_shim(tmp_path_factory: pytest.TempPathFactory) -> Shim:
    """The HIP shim, built and loaded."""
    from hip_harness import Shim, build

    # The fixture below collects after every test: only what is made from here on.
    gc.collect()
    gc.freeze()
    try:
        return Shim(build(tmp_path_factory.mktemp("hip")))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def shim(loaded_shim: Shim, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shim]:
    """The shim as this system's HIP runtime; at the end of the test nothing may be left of what it made."""
    import spconv_compiler as sc
    from spconv_compiler.runtime.hip_device import hip_device

    monkeypatch.setenv("SPCONV_HIP", str(loaded_shim.path))
    loaded_shim.reset()
    yield loaded_shim
    loaded_shim.reset()
    sc.clear_caches()
    hip_device.cache_clear()
    gc.collect()
    assert loaded_shim.live() == {}


@pytest.fixture
def hip(shim: Shim) -> HipLibrary:
    """The HIP runtime."""
    from spconv_compiler.runtime.hip_library import load_hip

    return load_hip()


@pytest.fixture
def device(hip: HipLibrary) -> HipDevice:
    """A GPU behind HIP; weak, since the test would keep it beyond the count of what is left."""
    from spconv_compiler.runtime.hip_device import hip_device

    found: HipDevice = weakref.proxy(hip_device(hip, 0, "gfx950"))
    return found


@pytest.fixture
def stream(hip: HipLibrary) -> Iterator[Stream]:
    """A stream on it."""
    from spconv_compiler.runtime.hip import Stream

    with Stream(hip) as made:
        yield made


@pytest.fixture
def raw(hip: HipLibrary) -> Iterator[Raw]:
    """HIP without the care of runtime/hip.py."""
    from hip_raw import Raw

    found = Raw(hip)
    yield found
    found.release()


@pytest.fixture
def disk(tmp_path: pathlib.Path) -> DiskCache:
    """A kernel cache on disk, empty."""
    from cache_cases import BOUND

    from spconv_compiler.cache import DiskCache

    return DiskCache(tmp_path / "cache", BOUND)
