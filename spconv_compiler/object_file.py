"""Object files of modules at level cpu, by MLIR's ExecutionEngine.

The engine's Python class holds the GIL while LLVM works. Its C functions, called through ctypes, do not, so two threads
can compile at once, each a module in a context of its own.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from spconv_compiler.bindings import ir, native_function, native_pointer
from spconv_compiler.errors import CodegenError

# At 3 LLVM takes a twelfth longer, for the same code but in the sort, which is no faster with it.
_OPTIMIZATION = 2


class _Text(ctypes.Structure):
    """MlirStringRef, which is passed by value."""

    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t)]  # noqa: RUF012


def _text(value: str) -> _Text:
    data = value.encode()
    return _Text(data, len(data))


class _Engine(NamedTuple):
    """The C functions; an MlirModule and an MlirExecutionEngine are structures of one pointer, passed as such.

    create(module, optimization level, number of libraries, libraries, keep the object, position-independent).
    """

    create: Any
    lookup: Any
    dump: Any
    destroy: Any


@functools.cache
def _engine() -> _Engine:
    pointer, flag, number = ctypes.c_void_p, ctypes.c_bool, ctypes.c_int
    prefix = "mlirExecutionEngine"
    return _Engine(
        native_function(f"{prefix}Create", pointer, pointer, number, number, pointer, flag, flag),
        native_function(f"{prefix}Lookup", pointer, pointer, _Text),
        native_function(f"{prefix}DumpToObjectFile", None, pointer, _Text),
        native_function(f"{prefix}Destroy", None, pointer),
    )


def write_object(module: ir.Module, names: Sequence[str], path: pathlib.Path) -> None:
    """Compiles all of a module, whose functions `names` are exported, to a position-independent object.

    Raises:
        CodegenError: LLVM cannot translate it, or makes no code for one of the names.
        ToolchainError: this flydsl lacks the functions.
    """
    functions = _engine()
    engine = functions.create(native_pointer(module), _OPTIMIZATION, 0, None, True, True)
    if not engine:
        raise CodegenError("LLVM cannot translate the kernels; see the MLIR diagnostics above")
    try:
        # A lookup generates the object that is dumped; dumping without one aborts the process.
        for name in names:
            if not functions.lookup(engine, _text(name)):
                raise CodegenError(f"LLVM generated no code for {name}")
        functions.dump(engine, _text(str(path)))
    finally:
        functions.destroy(engine)
