"""Compiles single CPU kernels and calls them with arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from spconv_compiler.bindings import PassManager, ir
from spconv_compiler.codegen_cpu import emit_cpu
from spconv_compiler.context import make_context
from spconv_compiler.dialect.types import element_named
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.rows import ApplyEpilogue
from spconv_compiler.passes.cpu.upstream import loops_to_llvm
from spconv_compiler.passes.kernel_builder import f32, i64
from spconv_compiler.runtime.cpu import CpuModule
from spconv_compiler.targets import CpuTarget, get_target

Array = npt.NDArray[np.generic]


def host_target() -> CpuTarget:
    target = get_target("cpu")
    assert isinstance(target, CpuTarget)
    return target


def narrow_target() -> CpuTarget:
    """The level that every host of these tests can run."""
    target = get_target("x86-64-v3")
    assert isinstance(target, CpuTarget)
    return target


def code_of(define: Callable[[Functions], None], target: CpuTarget | None = None) -> bytes:
    """The shared object of the kernels that `define` builds."""
    target = target or narrow_target()
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        define(Functions(module, target))
        module.operation.verify()
        PassManager.parse(f"builtin.module({loops_to_llvm(target)})").run(module.operation)
        return emit_cpu(module, target)


def kinds(text: str) -> list[ir.Type]:
    """Argument types of a kernel: p for a pointer, n for a number."""
    return [pointer() if letter == "p" else i64() for letter in text]


@dataclasses.dataclass
class Kernel:
    """A compiled kernel that takes arrays and whole numbers."""

    module: CpuModule
    name: str

    def __call__(self, *arguments: Array | int) -> int:
        types = ["buffer" if isinstance(argument, np.ndarray) else "symbol" for argument in arguments]
        function = self.module.function(self.name, types)
        values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
        return int(function(*values))


def kernel_of(define: Callable[[Functions], None], name: str, target: CpuTarget | None = None) -> Kernel:
    """The kernel `name` among those that `define` builds."""
    return Kernel(CpuModule(code_of(define, target)), name)


def aligned(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """An array of zeros that starts on a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def epilogue_kernel(functions: Functions, dtype: str, activation: str) -> ApplyEpilogue:
    """The epilogue of f32 sums of one channel, rounded to a dtype."""
    return ApplyEpilogue(functions, "apply", 1, f32(), None, element_named(dtype), Epilogue(activation))
