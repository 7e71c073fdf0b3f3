"""From level rocdl to a linked code object, assembly text, and what the object's metadata says of each kernel.

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
from spconv_compiler.errors import CodegenError
from spconv_compiler.passes.gpu.upstream import attach_target, to_binary
from spconv_compiler.targets import GpuTarget

_ERROR = re.compile(r"^(?:.*:\s*)?error:.*$", re.MULTILINE)
_ARGUMENT_KINDS = ("global_buffer", "by_value")


@dataclasses.dataclass(frozen=True)
class KernelArgument:
    """Where an argument lies in the kernel's argument block, in bytes; kind: "global_buffer" or "by_value"."""

    offset: int
    size: int
    kind: str


@dataclasses.dataclass(frozen=True)
class GpuKernel:
    """What the code object says of one kernel.

    Attributes:
        arguments, kernarg_bytes: layout and size of the argument block.
        vgpr: vector registers of a lane, accumulation registers included; agpr: those; sgpr: scalar registers.
        lds_bytes: local memory of a workgroup. scratch_bytes: private memory of a lane, for spills.
        vgpr_spills, sgpr_spills: registers that did not fit.
        block: lanes of a workgroup.
    """

    arguments: tuple[KernelArgument, ...]
    kernarg_bytes: int
    vgpr: int
    agpr: int
    sgpr: int
    lds_bytes: int
    scratch_bytes: int
    vgpr_spills: int
    sgpr_spills: int
    block: int


@dataclasses.dataclass(frozen=True)
class GpuCode:
    """A linked code object (ELF), its assembly text, and its kernels by name."""

    object: bytes
    isa: str
    kernels: dict[str, GpuKernel]


def emit_gpu(module: ir.Module, target: GpuTarget, toolkit: pathlib.Path) -> GpuCode:
    """Generates code for the kernels of a module at level rocdl; the module is left as it is.

    Args:
        toolkit: a folder with llvm/bin/ld.lld in it (linker.toolkit_dir).

    Raises:
        CodegenError: the code generator or the linker failed, or a kernel does not fit the target.
    """
    kernels, attach = kernels_of(module), attach_target(target)
    isa = translate(kernels, attach, to_binary("isa")).decode()
    facts = kernel_facts(isa)
    for name, kernel in facts.items():
        _check(name, kernel, target)
    return GpuCode(translate(kernels, attach, to_binary("bin", str(toolkit))), isa, facts)


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
    """
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


def kernel_facts(isa: str) -> dict[str, GpuKernel]:
    """The kernels that the .amdgpu_metadata section of assembly text describes, by name.

    Raises:
        CodegenError: there is no such section, or it lacks a fact.
    """
    match = re.search(r"^\s*\.amdgpu_metadata\n(.*?)\n\s*\.end_amdgpu_metadata", isa, re.MULTILINE | re.DOTALL)
    if match is None:
        raise CodegenError("the assembly text has no .amdgpu_metadata section")
    entries = re.split(r"^  - ", match[1].split("amdhsa.target:")[0], flags=re.MULTILINE)[1:]
    return dict(_kernel(entry) for entry in entries)


def _kernel(entry: str) -> tuple[str, GpuKernel]:
    """One kernel's entry: keys indented by 4 (the first stands behind the dash), list items by 6."""
    facts = dict(re.findall(r"^(?: {4})?\.(\w+): +(\S+)$", entry, re.MULTILINE))
    listed = dict(re.findall(r"^(?: {4})?\.(\w+):\n((?: {6}.*\n?)+)", entry, re.MULTILINE))
    try:
        arguments = tuple(
            KernelArgument(int(values["offset"]), int(values["size"]), values["value_kind"])
            for item in re.split(r"^ {6}- ", listed.get("args", ""), flags=re.MULTILINE)[1:]
            for values in [dict(re.findall(r"\.(\w+): +(\S+)", item))]
        )
        block = [int(size) for size in re.findall(r"\d+", listed["reqd_workgroup_size"])]
        numbers = {
            field: int(facts[key])
            for field, key in (
                ("kernarg_bytes", "kernarg_segment_size"),
                ("vgpr", "vgpr_count"),
                ("agpr", "agpr_count"),
                ("sgpr", "sgpr_count"),
                ("lds_bytes", "group_segment_fixed_size"),
                ("scratch_bytes", "private_segment_fixed_size"),
                ("vgpr_spills", "vgpr_spill_count"),
                ("sgpr_spills", "sgpr_spill_count"),
            )
        }
        return facts["name"], GpuKernel(arguments, **numbers, block=block[0] * block[1] * block[2])
    except (KeyError, IndexError) as error:
        raise CodegenError(f"the metadata of a kernel lacks {error}:\n{entry}") from None
