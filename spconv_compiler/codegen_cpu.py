"""From level cpu to a shared object: LLVM through MLIR's ExecutionEngine, in two threads, then the linker."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import tempfile
import threading
from collections.abc import Iterable, Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.errors import CodegenError
from spconv_compiler.linker import link_shared
from spconv_compiler.object_file import write_object
from spconv_compiler.passes.kernel_module import KERNELS
from spconv_compiler.scratch_room import require_room
from spconv_compiler.targets import CpuTarget

# More would have each repeat what kernels share, and most machines' second core is idle while one compiles.
_PARTS = 2
# A child that is forked while LLVM works would inherit its locks as they are: forks wait, and one module is compiled at
# a time. Re-entrant, for a handler of a signal that forks.
_compiling = threading.RLock()


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function or constant of the kernel module: how many operations it has, and the names that it refers to."""

    op: ir.Operation
    name: str
    exported: bool
    size: int
    uses: frozenset[str]


@dataclasses.dataclass(frozen=True)
class _Part:
    """Exported kernels with all that they refer to, as a module, and its context if that is its own."""

    module: ir.Module
    names: list[str]
    context: ir.Context | None = None


def emit_cpu(module: ir.Module, target: CpuTarget) -> bytes:
    """Compiles and links the kernels of a module at level cpu.

    The functions carry what they are compiled for (llvm.target_cpu): this host need not be able to run them. How they
    are dealt to threads depends on the module alone, and so does the object.

    Returns:
        A position-independent ELF shared object with the exported kernels as plain C functions. It leaves memset,
        memcpy and what parallel.py calls of the C library to the process that loads it.

    Raises:
        CodegenError: there are no kernels, or LLVM or the linker fails.
        ToolchainError: no usable linker, or no room for temporary files.
    """
    require_room()
    with tempfile.TemporaryDirectory(prefix="spconv-") as folder:
        parts = _parts(module)
        objects = [pathlib.Path(folder, f"kernels{number}.o") for number in range(len(parts))]
        try:
            _emit_objects(parts, objects)
        except CodegenError as error:
            raise CodegenError(f"{error} (target {target.name})") from error
        library = pathlib.Path(folder, "kernels.so")
        link_shared(objects, library)
        return library.read_bytes()


def _emit_objects(parts: Sequence[_Part], objects: Sequence[pathlib.Path]) -> None:
    """Compiles the parts side by side, the first in this thread."""
    failures: list[BaseException] = []

    def emit(number: int) -> None:
        try:
            write_object(parts[number].module, parts[number].names, objects[number])
        except BaseException as error:  # raised again in the thread that waits
            failures.append(error)

    others = [threading.Thread(target=emit, args=(number,)) for number in range(1, len(parts))]
    with _compiling:
        for thread in others:
            thread.start()
            if _processors() == 1:
                thread.join()
        emit(0)
        for thread in others:
            thread.join()
    if failures:
        raise failures[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release
    )


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parts(module: ir.Module) -> list[_Part]:
    """The kernels in parts of about equal size; all but the first in contexts of their own."""
    functions = {function.name: function for function in _functions(module)}
    kernels = [(function.name, _closure(function, functions)) for function in functions.values() if function.exported]
    if not kernels:
        raise CodegenError(f"the module has no kernels: it holds no nested module @{KERNELS} with exported functions")
    shares: list[set[str]] = [set() for _ in range(min(_PARTS, len(kernels)))]
    sizes = {name: sum(functions[used].size for used in uses) for name, uses in kernels}
    # The largest first, each to the share that is smallest then: what both refer to is compiled twice.
    for _, uses in sorted(kernels, key=lambda kernel: -sizes[kernel[0]]):
        min(shares, key=lambda share: sum(functions[name].size for name in share)).update(uses)
    made = [_part([one for one in functions.values() if one.name in share]) for share in shares]
    return [*made[:1], *map(_elsewhere, made[1:])]


def _functions(module: ir.Module) -> list[_Function]:
    for op in module.body.operations:
        if op.operation.name == "builtin.module":
            return [_described(function.operation) for function in op.regions[0].blocks[0].operations]
    return []


def _described(op: ir.Operation) -> _Function:
    size, uses = 0, set()
    for block in (block for region in op.regions for block in region):
        for inner in block.operations:
            size += 1
            name = {"llvm.call": "callee", "llvm.mlir.addressof": "global_name"}.get(inner.operation.name)
            if name is not None and name in inner.attributes:
                uses.add(ir.FlatSymbolRefAttr(inner.attributes[name]).value)
    exported = size > 0 and "internal" not in str(op.attributes["linkage"])
    return _Function(op, ir.StringAttr(op.attributes["sym_name"]).value, exported, size, frozenset(uses))


def _closure(function: _Function, functions: dict[str, _Function]) -> set[str]:
    """The names of a function and of all that it refers to, through others too."""
    found: set[str] = set()
    open_ = [function.name]
    while open_:
        name = open_.pop()
        if name not in found:
            found.add(name)
            open_ += functions[name].uses
    return found


def _part(functions: Iterable[_Function]) -> _Part:
    members = list(functions)
    made = ir.Module.create(members[0].op.location)
    with ir.InsertionPoint(made.body):
        for function in members:
            function.op.clone()
    return _Part(made, [function.name for function in members if function.exported])


def _elsewhere(part: _Part) -> _Part:
    """A part in a new context: one context must not be used by two threads."""
    written = io.BytesIO()
    part.module.operation.write_bytecode(written)
    context = ir.Context()
    context.enable_multithreading(False)
    with context:
        return _Part(ir.Module.parse(written.getvalue()), part.names, context)
