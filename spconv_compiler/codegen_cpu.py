"""From level cpu to a shared object: LLVM through MLIR's ExecutionEngine, then the linker."""

from __future__ import annotations

import pathlib
import tempfile

from spconv_compiler.bindings import ExecutionEngine, ir
from spconv_compiler.errors import CodegenError
from spconv_compiler.linker import link_shared
from spconv_compiler.passes.kernel_module import KERNELS
from spconv_compiler.targets import CpuTarget

# At 3 LLVM takes a twelfth longer, for the same code but in the sort, which is no faster with it.
_OPTIMIZATION = 2


def emit_cpu(module: ir.Module, target: CpuTarget) -> bytes:
    """Compiles and links the kernels of a module at level cpu.

    The functions carry what they are compiled for (llvm.target_cpu): this host need not be able to run them.

    Returns:
        A position-independent ELF shared object with the exported kernels as plain C functions. It leaves memset,
        memcpy and what parallel.py calls of the C library to the process that loads it.

    Raises:
        CodegenError: there are no kernels, or LLVM or the linker fails.
        ToolchainError: no usable linker.
    """
    with tempfile.TemporaryDirectory(prefix="spconv-") as folder:
        object_path, library = pathlib.Path(folder, "kernels.o"), pathlib.Path(folder, "kernels.so")
        _emit_object(module, target, object_path)
        link_shared([object_path], library)
        return library.read_bytes()


def _emit_object(module: ir.Module, target: CpuTarget, path: pathlib.Path) -> None:
    kernels, names = _kernels(module)
    try:
        engine = ExecutionEngine(kernels, opt_level=_OPTIMIZATION, enable_object_dump=True, enable_pic=True)
    except RuntimeError as error:
        raise CodegenError(f"LLVM cannot translate the kernels for {target.name}: {error}") from error
    # A lookup generates the object that is dumped; dumping without one aborts the process.
    for name in names:
        if not engine.raw_lookup(name):
            raise CodegenError(f"LLVM generated no code for {name} on {target.name}")
    engine.dump_to_object_file(str(path))


def _kernels(module: ir.Module) -> tuple[ir.Module, list[str]]:
    """The kernels as a module of their own, and the names of those that are exported."""
    for op in module.body.operations:
        if op.operation.name == "builtin.module":
            made = ir.Module.create(op.operation.location)
            with ir.InsertionPoint(made.body):
                copies = [function.operation.clone() for function in op.regions[0].blocks[0].operations]
            return made, [name for name in map(_exported, copies) if name]
    raise CodegenError(f"the module has no kernels: it holds no nested module @{KERNELS}")


def _exported(function: ir.Operation) -> str | None:
    """The function's name, if it has a body and others may call it."""
    attributes = function.attributes
    if len(function.regions[0].blocks) == 0 or "internal" in str(attributes["linkage"]):
        return None
    return str(ir.StringAttr(attributes["sym_name"]).value)
