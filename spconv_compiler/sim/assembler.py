"""Assembles instructions with the code generator of the MLIR wheel: the text goes in as inline assembly.

Only the generator of opcodes.py and tests use this; running kernels needs no assembler.
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.errors import CodegenError
from spconv_compiler.sim.elf import CodeObject

_SLOT = 16
_MODULE = """
module attributes {{gpu.container_module}} {{
  gpu.module @m [#rocdl.target<O = 0, chip = "gfx950", abi = "600">] {{
    llvm.func @k() attributes {{gpu.kernel, rocdl.kernel}} {{
      llvm.inline_asm has_side_effects "{text}", "" : () -> ()
      llvm.return
    }}
  }}
}}
"""


def assemble(lines: Sequence[str]) -> list[bytes]:
    """The bytes of each instruction, padded with s_nop to slots of 16 bytes.

    Raises:
        CodegenError: the assembler refuses a line.
    """
    text = "".join(f"{line}\\0A.p2align 4\\0A" for line in lines).replace('"', "\\22")
    code = CodeObject(_link(_MODULE.format(text=text))).kernels["k"].code
    return [code[at : at + _SLOT] for at in range(0, _SLOT * len(lines), _SLOT)]


def _link(module: str) -> bytes:
    from spconv_compiler.bindings import PassManager, gpu, ir
    from spconv_compiler.codegen_gpu import watch_stderr
    from spconv_compiler.context import make_context
    from spconv_compiler.linker import toolkit_dir
    from spconv_compiler.passes.gpu.upstream import to_binary

    with make_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        with watch_stderr() as log:
            try:
                PassManager.parse(f"builtin.module({to_binary('bin', str(toolkit_dir()))})").run(parsed.operation)
            except ir.MLIRError as error:
                # A refused line leaves nothing to link: the reason stands on the error stream, not here.
                log.append(f"error: {str(error)[:200]}")
        if "error:" in "".join(log):
            raise CodegenError("".join(log))
        return bytes(gpu.ObjectAttr(parsed.body.operations[0].operation.attributes["objects"][0]).object)
