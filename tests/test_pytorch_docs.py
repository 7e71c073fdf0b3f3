"""What users read and run: the examples, and the API reference, which must be what docstrings say now."""

from __future__ import annotations

import pathlib
import runpy

import pytest
import torch

from spconv_compiler.tools import api_reference

EXAMPLES = sorted((pathlib.Path(__file__).parent.parent / "examples").glob("*.py"))
# This one runs on the simulator, whose functions a new cache has to compile.
SLOW = {"weights_from_elsewhere"}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else (), id=path.stem) for path in EXAMPLES],
)
def test_example(path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs to its end; every example prints what it found, and asserts it."""
    torch._dynamo.reset()
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# %% [markdown]\n# # ") and text.count("# %%\n") == text.count("# ## ") + 1


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


def test_api_reference_is_current(repo: pathlib.Path) -> None:
    page = repo / "docs" / "api.md"
    assert page.read_text(encoding="utf-8") == api_reference.reference(), (
        "docs/api.md is not current: run `python -m spconv_compiler.tools.api_reference`"
    )


def test_check_says_whether_the_page_is_current(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "api.md"
    arguments = ["--output", str(page)]
    assert api_reference.main([*arguments, "--check"]) == 1
    assert api_reference.main(arguments) == 0
    assert api_reference.main([*arguments, "--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8").replace("indice_key", "index_key"), encoding="utf-8")
    assert api_reference.main([*arguments, "--check"]) == 1
    assert "not current" in capsys.readouterr().out


def test_page_has_every_public_name() -> None:
    import spconv_compiler.pytorch as spconv

    text = api_reference.reference()
    for name in ("subm_conv3d(", "SubMConv1d, SubMConv2d, SubMConv3d", "sparse_add", "from_minkowski", "PointToVoxel"):
        assert name in text
    classes = [name for name in spconv.__all__ if isinstance(getattr(spconv, name), type)]
    assert [name for name in classes if name not in text] == []
