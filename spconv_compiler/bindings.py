"""The only file that imports FlyDSL's embedded MLIR.

Two things happen here that nothing else may repeat: the bindings are imported without running
`flydsl/__init__.py` (which imports torch, about two seconds), and IRDL modules are loaded through the
C++ symbol that the wheel exports, because its Python bindings have no IRDL loader.
"""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
import sys
import types
from typing import TYPE_CHECKING, Any

from spconv_compiler.errors import ToolchainError

_IRDL_SYMBOL = "_ZN4mlir4irdl12loadDialectsENS_8ModuleOpE"


class _DeferredPackage(types.ModuleType):
    """`flydsl` in sys.modules, whose own `__init__.py` runs when somebody first asks for what it defines.

    It has to stay there: when MLIR makes the Python class of an op or attribute, it imports the module of its
    dialect by the dotted name, and that imports `flydsl` whenever it is missing.
    """

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        if spec is None or spec.loader is None or (name[:2] == "__" and name not in _DEFINED_BY_INIT):
            raise AttributeError(f"module 'flydsl' has no attribute {name!r}")
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        self.__path__ = list(spec.submodule_search_locations or ())
        try:
            spec.loader.exec_module(self)
        except BaseException:
            del self.__path__
            self.__class__ = _DeferredPackage
            raise
        return getattr(self, name)


# Submodules of flydsl are found through __path__, so importing one runs `__init__.py` first, as usual.
_DEFINED_BY_INIT = ("__path__", "__version__", "__all__")


def _import_bindings() -> pathlib.Path:
    """Imports `flydsl._mlir` without the rest of flydsl, and returns the folder of flydsl."""
    spec = importlib.util.find_spec("flydsl")
    if spec is None or spec.origin is None:
        raise ToolchainError("flydsl is not installed: found no module `flydsl`; install flydsl>=0.5,<0.6")
    folder = pathlib.Path(spec.origin).parent
    before = sys.modules.get("flydsl")
    if before is None:
        bare = types.ModuleType("flydsl")
        bare.__path__ = [str(folder)]
        sys.modules["flydsl"] = bare
    try:
        for name in ("ir", "passmanager", "execution_engine", "rewrite"):
            importlib.import_module(f"flydsl._mlir.{name}")
        importlib.import_module("flydsl._mlir.dialects.builtin")
        # Namespace packages look their parent up again on every search; fixed paths do without it.
        for name in ("flydsl._mlir", "flydsl._mlir.dialects"):
            sys.modules[name].__path__ = list(sys.modules[name].__path__)
    finally:
        if before is None:
            del sys.modules["flydsl"]
    if before is None:
        deferred = _DeferredPackage("flydsl")
        deferred.__spec__, deferred.__loader__, deferred.__file__ = spec, spec.loader, spec.origin
        deferred.__package__ = "flydsl"
        deferred._mlir = sys.modules["flydsl._mlir"]  # type: ignore[attr-defined]
        sys.modules["flydsl"] = deferred
    return folder


_FOLDER = _import_bindings()

from flydsl._mlir import ir, rewrite  # noqa: E402
from flydsl._mlir._mlir_libs import _mlir as _cext  # noqa: E402
from flydsl._mlir.execution_engine import ExecutionEngine  # noqa: E402
from flydsl._mlir.passmanager import PassManager  # noqa: E402

if TYPE_CHECKING:
    from flydsl._mlir.dialects import arith, cf, func, gpu, llvm, math, memref, rocdl, scf, vector

__all__ = [
    "ExecutionEngine",
    "PassManager",
    "arith",
    "cf",
    "func",
    "gpu",
    "ir",
    "llvm",
    "load_irdl",
    "math",
    "memref",
    "native_function",
    "native_pointer",
    "register_dialect",
    "register_operation",
    "rewrite",
    "rocdl",
    "scf",
    "vector",
]

# Imported on first use: the classes of llvm and rocdl ops take 0.15 s, and few modules build such ops.
_DIALECTS = ("arith", "cf", "func", "gpu", "llvm", "math", "memref", "rocdl", "scf", "vector")

register_operation = _cext.register_operation


def __getattr__(name: str) -> Any:
    if name in _DIALECTS:
        return importlib.import_module(f"flydsl._mlir.dialects.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register_dialect(class_: type[ir.Dialect]) -> type[ir.Dialect]:
    """Class decorator: makes `class_` the Python view of the dialect that it names."""
    # MLIR looks for this module before it makes a Python object of the dialect, and looks again (100 µs on the
    # disk) for every attribute and type until it finds one.
    name = f"flydsl._mlir.dialects.{class_.DIALECT_NAMESPACE}"
    sys.modules.setdefault(name, types.ModuleType(name))
    registered: type[ir.Dialect] = _cext.register_dialect(class_)
    return registered


def load_irdl(module: ir.Module) -> None:
    """Defines the dialects that `module` (irdl.dialect ops) describes, in the module's context.

    Loading one op twice into a context aborts the process: callers keep count (`dialect/loader.py`).

    Raises:
        ToolchainError: this flydsl has no IRDL loader, or it refuses the module.
    """
    # mlir::LogicalResult is one bool: true means success.
    if not native_function(_IRDL_SYMBOL, ctypes.c_bool, ctypes.c_void_p)(native_pointer(module)):
        raise ToolchainError("flydsl's IRDL loader refused the dialect; see the MLIR diagnostics above")


def native_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function that the wheel's library exports, by its symbol, with ctypes' types; it is called without the GIL.

    Raises:
        ToolchainError: this flydsl has no such library, or no such function.
    """
    libraries = sorted((_FOLDER / "_mlir" / "_mlir_libs").glob("libFlyPythonCAPI.so*"))
    if not libraries:
        raise ToolchainError(f"flydsl at {_FOLDER} has no libFlyPythonCAPI.so; install flydsl>=0.5,<0.6")
    try:
        function = ctypes.CDLL(str(libraries[0]))[name]
    except AttributeError:
        raise ToolchainError(
            f"{libraries[0].name} exports no {name}; install flydsl>=0.5,<0.6, "
            "or adapt spconv_compiler/bindings.py to the new wheel"
        ) from None
    function.restype, function.argtypes = result, arguments
    return function


def native_pointer(module: ir.Module) -> int:
    """The address of a module as native code knows it; it lives as long as `module`."""
    capsule = module.operation._CAPIPtr
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, name(capsule)))
