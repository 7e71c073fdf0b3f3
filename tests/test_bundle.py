"""Kernels compiled ahead of time: written whole, found without the compiler, refused when damaged."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from spconv_compiler import bundle, compiler
from spconv_compiler.errors import InputError
from spconv_compiler.reference import subm_conv3d as reference
from spconv_compiler.targets import get_target

COORDS = np.array([[0, 0, 0], [0, 0, 1], [1, 0, 1], [5, 5, 5]], np.int32)

# Runs a convolution in a process that cannot import MLIR.
WITHOUT_COMPILER = """
import sys
class NoCompiler:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "flydsl":
            raise ImportError("there is no flydsl")
sys.meta_path.insert(0, NoCompiler())
import numpy as np, spconv_compiler as sc
coords, features, weight, place = (np.load(sys.argv[1])[name] for name in ("coords", "features", "weight", "place"))
np.save(str(place), sc.subm_conv3d(coords, features, weight, target="cpu"))
"""


def options(channels: int = 8) -> compiler.CompileOptions:
    return compiler.conv_options(3, channels, channels, target="cpu")


def test_a_bundle_serves_a_process_without_the_compiler(tmp_path: pathlib.Path) -> None:
    assert bundle.export_kernels(tmp_path / "bundle", [options()]) == 1
    random = np.random.default_rng(0)
    features = random.integers(-4, 5, (4, 8)).astype(np.float32)
    weight = random.integers(-4, 5, (8, 3, 3, 3, 8)).astype(np.float32)
    np.savez(tmp_path / "in.npz", coords=COORDS, features=features, weight=weight, place=str(tmp_path / "out.npy"))
    variables = {**os.environ, "SPCONV_BUNDLE": str(tmp_path / "bundle"), "SPCONV_CACHE": "off"}
    command = [sys.executable, "-c", WITHOUT_COMPILER, str(tmp_path / "in.npz")]
    subprocess.run(command, check=True, env=variables, timeout=120)
    wide = np.concatenate([np.zeros((4, 1), np.int32), COORDS], axis=1)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), reference(wide, features, weight))


def test_other_options_are_not_in_it(tmp_path: pathlib.Path) -> None:
    bundle.export_kernels(tmp_path, [options()])
    assert bundle.find(tmp_path, options(), get_target("cpu")) is not None
    assert bundle.find(tmp_path, options(16), get_target("cpu")) is None


def test_a_damaged_entry_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    bundle.export_kernels(tmp_path, [options()])
    (entry,) = (path for path in tmp_path.iterdir() if not path.name.startswith("."))
    (entry / "plan.json").write_bytes(b"{}")
    with pytest.raises(InputError, match=r"damaged: plan\.json has 2 bytes"):
        bundle.find(tmp_path, options(), get_target("cpu"))


def test_an_entry_is_replaced(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        bundle.export_kernels(tmp_path, [options()])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_missing_folder_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="nowhere is no folder"):
        bundle.find(tmp_path / "nowhere", options(), get_target("cpu"))
