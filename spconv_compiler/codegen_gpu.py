"""From level rocdl to a linked code object, and to assembly text for those who want to see it.

LLVM's back end reports errors on file descriptor 2 and lets the pass succeed, so the descriptor is watched; and a
kernel with too much local memory or with spills is an object too, so the metadata is checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator

from spconv_compiler.bindings import PassManager, gpu, ir
from spconv_compiler.clauses import part_clauses
from spconv_compiler.errors import CodegenError
from spconv_compiler.kernel_facts import GpuKernel, facts_of_object, facts_of_text
from spconv_compiler.passes.gpu.upstream import attach_target, to_binary
from spconv_compiler.scratch_room import require_room
from spconv_compiler.targets import GpuTarget

_ERROR = re.compile(r"^(?:.*:\s*)?error:.*$", re.MULTILINE)
_ARGUMENT_KINDS = ("global_buffer", "by_value")
_OTHER_COMPILER = ("another flydsl has made the object: compile the convolution again with the one that is installed",)


@dataclasses.dataclass(frozen=True)
class GpuCode:
    """A linked code object (ELF), and its kernels by name.

    level: the text of the module, if it had to be changed for this object (clauses.py), or "".
    """

    object: bytes
    kernels: dict[str, GpuKernel]
    level: str = ""


def emit_gpu(module: ir.Module, target: GpuTarget, toolkit: pathlib.Path) -> GpuCode:
    """Generates code for the kernels of a module at level rocdl; the module is left as it is.

    Args:
        toolkit: a folder with llvm/bin/ld.lld in it (linker.toolkit_dir).

    Raises:
        CodegenError: the code generator or the linker failed, or a kernel does not fit the target.
    """

    def generate(module: ir.Module) -> bytes:
        return translate(kernels_of(module), attach_target(target), to_binary("bin", str(toolkit)))

    code, level = part_clauses(module, generate(module), generate)
    facts = facts_of_object(code)
    for name, kernel in facts.items():
        _check(name, kernel, target)
    return GpuCode(code, facts, level)


def emit_isa(module: ir.Module, target: GpuTarget) -> str:
    """The assembly text of the kernels of a module at level rocdl: what emit_gpu assembles and links.

    It costs as much as the object, so it is made for those who ask.

    Raises:
        CodegenError: the code generator failed.
    """
    return translate(kernels_of(module), attach_target(target), to_binary("isa")).decode()


def isa_of(code: bytes, level: str, target: GpuTarget) -> str:
    """The assembly text of a code object, from the text of level rocdl that it was made of.

    Raises:
        CodegenError: the code generator failed, or what it gives now is not the code of this object.
    """
    from spconv_compiler.context import make_context

    with make_context(), ir.Location.unknown():
        try:
            isa = emit_isa(ir.Module.parse(level), target)
        except ir.MLIRError as error:
            raise CodegenError(f"the text of level rocdl is refused: {error}", notes=_OTHER_COMPILER) from error
    if facts_of_text(isa) != facts_of_object(code):
        raise CodegenError("the code generator gives other code than that of the object", notes=_OTHER_COMPILER)
    return isa


def kernels_of(module: ir.Module) -> ir.OpView:
    """The gpu.module of a module at its last level.

    Raises:
        CodegenError: there is none.
    """
    for op in module.body.operations:
        if op.operation.name == "gpu.module":
            return op
    raise CodegenError("the module has no kernels", notes=("accepted: one with a gpu.module",))


def translate(kernels: ir.OpView, attach: str, to_binary_pass: str) -> bytes:
    """The bytes that gpu-module-to-binary makes of a copy of the kernels, marked for a chip by the pass `attach`.

    Raises:
        CodegenError: the code generator or the linker failed.
        ToolchainError: no room for temporary files.
    """
    require_room()
    pipeline = f"builtin.module({attach},{to_binary_pass})"
    with kernels.operation.context, ir.Location.unknown():
        copy = ir.Module.create()
        with ir.InsertionPoint(copy.body):
            kernels.operation.clone()
        with watch_stderr() as log:
            try:
                PassManager.parse(pipeline).run(copy.operation)
            except ir.MLIRError as error:
                log.append(f"error: {error}")
        errors = _ERROR.findall("".join(log))
        if errors:
            raise CodegenError("\n".join(errors), notes=(f"pipeline: {pipeline}",))
        objects = copy.body.operations[0].operation.attributes["objects"]
        return bytes(gpu.ObjectAttr(objects[0]).object)


@contextlib.contextmanager
def watch_stderr() -> Iterator[list[str]]:
    """Collects what native code writes to file descriptor 2; text without an error in it is passed on after all."""
    log: list[str] = []
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield log
        finally:
            os.dup2(saved, 2)
            file.seek(0)
            text = file.read()
            log.append(text.decode(errors="replace"))
            if text and not _ERROR.search(log[-1]):
                os.write(2, text)
            os.close(saved)


def _check(name: str, kernel: GpuKernel, target: GpuTarget) -> None:
    """Raises CodegenError when a kernel asks for what the target, the launcher or the schedule does not have."""
    if kernel.lds_bytes > target.lds_bytes:
        raise CodegenError(
            f"kernel {name} uses {kernel.lds_bytes} bytes of local memory; {target.name} has {target.lds_bytes}"
        )
    if kernel.scratch_bytes or kernel.vgpr_spills:
        raise CodegenError(
            f"kernel {name} needs {kernel.scratch_bytes} bytes of scratch and spills {kernel.vgpr_spills} registers",
            notes=("a schedule with smaller tiles needs fewer registers",),
        )
    hidden = sorted({argument.kind for argument in kernel.arguments} - set(_ARGUMENT_KINDS))
    if hidden:
        raise CodegenError(f"kernel {name} takes hidden arguments {', '.join(hidden)}, which no launch passes")
