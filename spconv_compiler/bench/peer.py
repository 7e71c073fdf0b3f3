"""spconv 2.3.8's CPU wheel as a contestant: the same convolution, the same tensors, the same threads.

Its loops run on the OpenMP runtime that torch brings (its own copy is loaded after it and gives way). With more
than one thread some of its results are wrong, and on a busy machine its threads wait for each other by spinning. So
it is measured twice: with the threads that all contestants get, and with one, where it is right.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import warnings
from pathlib import Path
from typing import Any

from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry

INSTALL = "pip install spconv==2.3.8"


class SpconvPeer:
    """One submanifold convolution of spconv, ready to run on CPU tensors.

    Args:
        weight: torch f32 [C_out, kz, ky, kx, C_in]; spconv's layout is this package's.
        spatial_shape: (z, y, x), which spconv needs.
        threads: of its loops and of torch's GEMM, which it uses.
    """

    def __init__(self, weight: Any, spatial_shape: tuple[int, ...], threads: int) -> None:
        self._spconv, self._torch = load_spconv(), importlib.import_module("torch")
        c_out, *kernel, c_in = weight.shape
        self._shape, self._threads = list(spatial_shape), threads
        self._conv = self._spconv.SubMConv3d(c_in, c_out, kernel, bias=False, indice_key="shared").eval()
        with self._torch.no_grad():
            self._conv.weight.copy_(weight)
        self._maps: dict[str, Any] = {}

    def prepare(self) -> None:
        """Sets the threads; to be called before a run whenever others may have set them since the last one."""
        set_threads(self._threads)

    def built(self, coords: Any, features: Any) -> Any:
        """Convolves with a new map; [N, C_out]."""
        return self._run(coords, features, {}).features

    def cached(self, coords: Any, features: Any) -> Any:
        """Convolves with the map of an earlier `cached` call."""
        out = self._run(coords, features, self._maps)
        self._maps = out.indice_dict
        return out.features

    def _run(self, coords: Any, features: Any, maps: dict[str, Any]) -> Any:
        with self._torch.no_grad():
            sparse = self._spconv.SparseConvTensor(features, coords, self._shape, 1)
            sparse.indice_dict = maps
            return self._conv(sparse)


class SpconvMaps:
    """spconv's maps of CPU coordinates, as its convolutions build them.

    Args:
        spatial_shape: (z, y, x); threads: of its loops.
    """

    def __init__(self, spatial_shape: tuple[int, ...], threads: int) -> None:
        load_spconv()
        self._ops = importlib.import_module("spconv.pytorch.ops")
        self._native = importlib.import_module("spconv.core").ConvAlgo.Native
        self._shape, self._threads = list(spatial_shape), threads

    def prepare(self) -> None:
        """As SpconvPeer.prepare."""
        set_threads(self._threads)

    def build(self, coords: Any, geometry: ConvGeometry, *, submanifold: bool) -> tuple[Any, Any, Any]:
        """(out_coords [M, 4], pairs [2, taps, N]: rows of inputs and of outputs, how many of each tap)."""
        axes = (geometry.kernel_size, geometry.stride, geometry.padding, geometry.dilation, (0, 0, 0))
        given = [list(values) for values in axes]
        found: tuple[Any, Any, Any] = self._ops.get_indice_pairs(
            coords, 1, self._shape, self._native, *given, submanifold, False
        )
        return found


def load_spconv() -> Any:
    """The module spconv.pytorch.

    Raises:
        InputError: it is not installed or does not load.
    """
    # It uses a function of torch that warns of its age, which says nothing about a measurement.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("spconv.pytorch")
    except Exception as error:  # its import runs code that fails in many ways beside another numpy or torch
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"--peer spconv: spconv cannot be imported ({reason}); install its CPU wheel: {INSTALL}"
        ) from None


def set_threads(threads: int) -> dict[str, int]:
    """Sets the threads of torch and of every OpenMP runtime; returns what each says afterwards.

    torch.set_num_threads does not reach a runtime that another package brings.
    """
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    found = {"torch": int(torch.get_num_threads())}
    for path in _openmp_runtimes():
        library = ctypes.CDLL(str(path))
        library.omp_set_num_threads(threads)
        found[f"{path.parent.name}/{path.name}"] = int(library.omp_get_max_threads())
    return found


def _openmp_runtimes() -> list[Path]:
    """The OpenMP runtimes that are loaded into this process."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    files = {Path(line.split(maxsplit=5)[5]) for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in files if path.name.startswith(("libgomp", "libomp", "libiomp")))
