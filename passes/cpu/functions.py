"""The functions of the CPU kernel module.

They are llvm.func already at level loops: a thread is started with the address of its function, and MLIR gives
addresses of llvm.func only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler.bindings import ir, llvm
from spconv_compiler.passes.kernel_builder import V, const, i64, unwrap
from spconv_compiler.passes.kernel_module import KERNELS, kernel_module
from spconv_compiler.targets import CpuTarget


def pointer() -> ir.Type:
    """!llvm.ptr."""
    return llvm.PointerType.get()


@dataclasses.dataclass(frozen=True)
class Functions:
    """Defines, declares and calls functions of @kernels, all compiled for `target`."""

    module: ir.Module
    target: CpuTarget

    def kernel(self, name: str, arguments: Sequence[ir.Type], body: Callable[..., V | None]) -> ir.Attribute:
        """Defines the exported function `i64 name(…)` once and returns its symbol @kernels::@name.

        Args:
            arguments: !llvm.ptr for buffers, i64 for numbers.
            body: called with one V per argument; returns the i64 result, or None for 0.
        """

        def whole(*values: V) -> V:
            result = body(*values)
            return const(0, i64()) if result is None else result

        self._define(name, arguments, i64(), whole, exported=True)
        return ir.Attribute.parse(f"@{KERNELS}::@{name}")

    def helper(
        self, name: str, arguments: Sequence[ir.Type], result: ir.Type | None, body: Callable[..., V | None]
    ) -> None:
        """Defines the function `name` once; only functions of this module can call it."""
        self._define(name, arguments, result, body, exported=False)

    def declare(self, name: str, arguments: Sequence[ir.Type], result: ir.Type) -> None:
        """Declares the C function `name`, which the loader finds in the process."""
        block = kernel_module(self.module, on_gpu=False)
        if not _defines(block, name):
            with ir.InsertionPoint(block):
                llvm.LLVMFuncOp(name, _function_type(arguments, result))

    def constant(self, name: str, content: bytes) -> None:
        """Defines the constant `name` once; address_of(name) finds it."""
        block = kernel_module(self.module, on_gpu=False)
        if not _defines(block, name):
            count = len(content)
            type_ = ir.Type.parse(f"!llvm.array<{count} x i8>")
            value = ir.Attribute.parse(f'dense<"0x{content.hex()}"> : tensor<{count}xi8>')
            with ir.InsertionPoint(block):
                llvm.GlobalOp(type_, name, _linkage("internal"), constant=True, value=value, alignment=64)

    def _define(
        self,
        name: str,
        arguments: Sequence[ir.Type],
        result: ir.Type | None,
        body: Callable[..., V | None],
        *,
        exported: bool,
    ) -> None:
        block = kernel_module(self.module, on_gpu=False)
        if _defines(block, name):
            return
        features = ", ".join(f'"{feature}"' for feature in self.target.llvm_features)
        with ir.InsertionPoint(block):
            function = llvm.LLVMFuncOp(
                name,
                _function_type(arguments, result),
                linkage=_linkage("external" if exported else "internal"),
                # The code generator adds a wrapper to each that is exported, which nobody calls.
                no_inline=True,
                target_cpu=self.target.llvm_cpu,
                target_features=ir.Attribute.parse(f"#llvm.target_features<[{features}]>"),
            )
            entry = function.regions[0].blocks.append(*arguments, arg_locs=[ir.Location.current] * len(arguments))
        with ir.InsertionPoint(entry):
            value = body(*[V(argument) for argument in entry.arguments])
            llvm.ReturnOp(arg=None if value is None else value.value)


def call(function: str | V, arguments: Sequence[V], result: ir.Type) -> V:
    """Calls a function of the module by name, or any by address, and gives its result."""
    return V(_call(function, arguments, result).result)


def call_procedure(function: str | V, arguments: Sequence[V]) -> None:
    """Calls a function that returns nothing."""
    _call(function, arguments, None)


def call_intrinsic(name: str, arguments: Sequence[V], result: ir.Type) -> V:
    """Calls an LLVM intrinsic by name, such as `llvm.ctpop`."""
    return V(llvm.CallIntrinsicOp(result, name, unwrap(arguments), [], []).results_)


def call_effect(name: str, arguments: Sequence[V]) -> None:
    """Calls an LLVM intrinsic that returns nothing."""
    llvm.CallIntrinsicOp(None, name, unwrap(arguments), [], [])


def address_of(name: str) -> V:
    """The address of a function of the module."""
    return V(llvm.AddressOfOp(pointer(), name).result)


def _call(function: str | V, arguments: Sequence[V], result: ir.Type | None) -> llvm.CallOp:
    if isinstance(function, str):
        return llvm.CallOp(result, unwrap(arguments), [], [], callee=function)
    return llvm.CallOp(result, unwrap([function, *arguments]), [], [])


def _function_type(arguments: Sequence[ir.Type], result: ir.Type | None) -> ir.TypeAttr:
    returned = "void" if result is None else str(result)
    return ir.TypeAttr.get(ir.Type.parse(f"!llvm.func<{returned} ({', '.join(map(str, arguments))})>"))


def _linkage(kind: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#llvm.linkage<{kind}>")


def _defines(block: ir.Block, name: str) -> bool:
    return any(ir.StringAttr(op.attributes["sym_name"]).value == name for op in block.operations)
