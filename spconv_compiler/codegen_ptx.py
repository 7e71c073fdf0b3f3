"""From level nvvm to PTX text, and what the text says of each kernel. The driver compiles PTX when it loads it."""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.codegen_gpu import kernels_of, translate
from spconv_compiler.errors import CodegenError
from spconv_compiler.passes.gpu.gemm_wgmma_rows import SHARED_BYTES
from spconv_compiler.passes.gpu.upstream import attach_nvvm_target, to_binary
from spconv_compiler.ptx_text import PtxKernel, note_dynamic_shared, ptx_kernels
from spconv_compiler.targets import GpuTarget


@dataclasses.dataclass(frozen=True)
class PtxCode:
    """PTX text and its kernels by name."""

    object: bytes
    isa: str
    kernels: dict[str, PtxKernel]


def emit_ptx(module: ir.Module, target: GpuTarget) -> PtxCode:
    """Generates PTX for the kernels of a module at level nvvm; the module is left as it is.

    Raises:
        CodegenError: the code generator failed, or a kernel does not fit the target.
    """
    kernels = kernels_of(module)
    text = translate(kernels, attach_nvvm_target(target), to_binary("isa")).decode().rstrip("\0")
    text = note_dynamic_shared(text, _dynamic_shared(kernels))
    found = ptx_kernels(text)
    for name, kernel in found.items():
        used = kernel.lds_bytes + kernel.dynamic_lds_bytes
        if used > target.lds_bytes:
            raise CodegenError(
                f"kernel {name} uses {used} bytes of shared memory; {target.name} has {target.lds_bytes}"
            )
    return PtxCode(text.encode(), text, found)


def _dynamic_shared(kernels: ir.OpView) -> dict[str, int]:
    """Bytes that launches must ask for, by kernel, where they must."""
    found = {}
    for op in kernels.operation.regions[0].blocks[0].operations:
        attributes = op.operation.attributes
        if SHARED_BYTES in attributes:
            found[ir.StringAttr(attributes["sym_name"]).value] = int(ir.IntegerAttr(attributes[SHARED_BYTES]).value)
    return found
