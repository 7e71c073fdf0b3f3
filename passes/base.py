"""What a pass is.

A pass is a frozen dataclass whose fields are its options, so the command-line form `name{option=value}` is
parsed and printed from the types. Valid IR goes in and valid IR comes out; in between it may be invalid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import ClassVar, NoReturn

from spconv_compiler.bindings import PassManager, ir
from spconv_compiler.errors import PassError, SpconvError

KERNEL_MODULES = ("gpu.module", "builtin.module")


@dataclasses.dataclass(frozen=True)
class Pass:
    """Base of all passes.

    Attributes:
        name: as on the command line; the file has the same name with underscores.
        needs: the level the module must be at ("" for any).
        gives: the level it is at, or on the way to, afterwards ("" when the pass leaves it alone).
    """

    name: ClassVar[str]
    needs: ClassVar[str] = ""
    gives: ClassVar[str] = ""

    def run(self, module: ir.Module) -> None:
        """Changes `module` in place.

        Raises:
            PassError: the pass refuses the module; nothing else may be concluded about its state.
        """
        raise NotImplementedError

    def fail(self, op: ir.Operation | ir.OpView, message: str, *notes: str) -> NoReturn:
        """Refuses `op`: the message says what was found, the notes what is supported or what to change."""
        operation = op.operation
        raise PassError(
            message,
            op=operation.get_asm(enable_debug_info=False, skip_regions=True),
            location=location_text(operation.location),
            pass_name=self.name,
            level=self.needs or None,
            notes=notes,
        )

    def __str__(self) -> str:
        given = [
            f"{field.name.replace('_', '-')}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return self.name + ("{" + " ".join(given) + "}" if given else "")


@dataclasses.dataclass(frozen=True)
class Upstream(Pass):
    """A run of upstream passes, under a name of our own for dumps and timing.

    `pipeline` is what stands inside `builtin.module(...)`.
    """

    label: str = ""
    pipeline: str = ""
    name: ClassVar[str] = "upstream"

    def run(self, module: ir.Module) -> None:
        with module.context:
            PassManager.parse(f"builtin.module({self.pipeline})").run(module.operation)

    def __str__(self) -> str:
        return self.pipeline


def location_text(location: ir.Location) -> str:
    """`file:line:column` of a location, or its MLIR text when it is not a plain file position."""
    text = str(location)
    return text.removeprefix("loc(").removesuffix(")").replace('"', "")


def ops_named(module: ir.Module, name: str, *, in_kernels: bool = False) -> list[ir.OpView]:
    """Every op called `name` on the host side, in program order; the list stays valid while ops are replaced.

    Kernels are large, and most passes have nothing to find there: they are searched only with `in_kernels`.
    """
    return [op for op in walk(module.operation, kernels=in_kernels) if op.operation.name == name]


def walk(root: ir.Operation, *, kernels: bool = True) -> Iterator[ir.OpView]:
    """All ops below `root`, parents before children; what is in kernel modules only with `kernels`."""
    for region in root.regions:
        for block in region:
            for op in block.operations:
                yield op
                if kernels or op.operation.name not in KERNEL_MODULES:
                    yield from walk(op.operation, kernels=kernels)


def replace_each(
    module: ir.Module, name: str, rewrite: Callable[[ir.OpView], list[ir.Value]], *, in_kernels: bool = False
) -> None:
    """Calls `rewrite` on every op called `name`, at its place and location, and puts the results in its stead.

    Raises:
        PassError: `rewrite` raised ValueError (a stage value that is not lowered yet); the op is attached.
    """
    for op in ops_named(module, name, in_kernels=in_kernels):
        try:
            with ir.InsertionPoint(op), op.operation.location:
                results = [getattr(value, "value", value) for value in rewrite(op)]
        except SpconvError:
            raise
        except ValueError as error:
            raise PassError(
                str(error), op=op.operation.get_asm(skip_regions=True), location=location_text(op.operation.location)
            ) from error
        for old, new in zip(op.operation.results, results, strict=True):
            old.replace_all_uses_with(new)
        op.operation.erase()


def defining_op(value: ir.Value) -> ir.OpView | None:
    """The op that produces `value`, as its op class; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation.opview


def enclosing_function(op: ir.OpView) -> ir.OpView:
    """The func.func around `op`."""
    parent = op.operation.parent
    while parent.operation.name != "func.func":
        parent = parent.operation.parent
    return parent
