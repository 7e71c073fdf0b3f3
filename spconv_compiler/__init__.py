"""Sparse 3D convolution, compiled through MLIR to AMD gfx950 machine code and to the CPU.

The public names below are resolved on first use, so that importing the package loads neither torch nor MLIR.
"""

from __future__ import annotations

import importlib
import pathlib

__version__ = "0.1.0"

# In a checkout, `passes/` and `dialect/` lie beside this package, not inside it.
if not (pathlib.Path(__file__).parent / "passes").is_dir():
    __path__.append(str(pathlib.Path(__file__).parent.parent))

_PUBLIC = {
    "Artifact": "artifact",
    "CacheWarning": "errors",
    "CompileError": "errors",
    "CompileOptions": "options",
    "ConvKernel": "driver",
    "InputError": "errors",
    "KernelMap": "driver",
    "LaunchError": "errors",
    "MapGeometry": "network_maps",
    "NetworkMaps": "network_maps",
    "SparseMap": "sparse_map",
    "SpconvError": "errors",
    "SubmanifoldMap": "network_maps",
    "ToolchainError": "errors",
    "build_map": "sparse_map",
    "build_maps": "network_maps",
    "clear_caches": "api",
    "compile": "network.compile",
    "compile_conv": "compiler",
    "import_graph": "network.importer",
    "load_conv": "driver",
    "mapped_conv3d": "sparse_conv",
    "mapped_pool3d": "sparse_pool",
    "sparse_avg_pool3d": "sparse_pool",
    "sparse_conv3d": "sparse_conv",
    "sparse_conv_transpose3d": "sparse_conv",
    "sparse_inverse_conv3d": "sparse_conv",
    "sparse_max_pool3d": "sparse_pool",
    "subm_conv3d": "api",
}

__all__ = [
    "Artifact",
    "CacheWarning",
    "CompileError",
    "CompileOptions",
    "ConvKernel",
    "InputError",
    "KernelMap",
    "LaunchError",
    "MapGeometry",
    "NetworkMaps",
    "SparseMap",
    "SpconvError",
    "SubmanifoldMap",
    "ToolchainError",
    "__version__",
    "build_map",
    "build_maps",
    "clear_caches",
    "compile",
    "compile_conv",
    "import_graph",
    "load_conv",
    "mapped_conv3d",
    "mapped_pool3d",
    "sparse_avg_pool3d",
    "sparse_conv3d",
    "sparse_conv_transpose3d",
    "sparse_inverse_conv3d",
    "sparse_max_pool3d",
    "subm_conv3d",
]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
