"""Fixtures of all tests."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

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
        patch.setenv("SPCONV_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYTHONPATH", str(REPO), prepend=os.pathsep)
        yield
