"""What a pass is.

A pass is a frozen dataclass whose fields are its options, so the command-line form `name{option=value}` is
parsed and printed from the types. Valid IR goes in and valid IR comes out; in between it may be invalid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NoReturn

from spconv_compiler.bindings import PassManager, ir
from spconv_compiler.errors import PassError, SpconvError

KERNEL_MODULES = ("gpu.module", "builtin.module")


@dataclasses.dataclass(frozen=True)
class Pass:
    """Base of all passes.

    Attributes:
        name: as on the command line; the file has the same name with underscores.
        needs: the level the module must be at ("" for any). A pass that needs level stages may add kernels, and
            leaves those that are there alone.
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

    `pipeline` is what stands inside `builtin.module(...)`. The run is one pass: what it leaves behind is verified, not
    what its parts leave to each other.
    """

    label: str = ""
    pipeline: str = ""
    name: ClassVar[str] = "upstream"

    def run(self, module: ir.Module) -> None:
        with module.context:
            manager = PassManager.parse(f"builtin.module({self.pipeline})")
            manager.enable_verifier(False)
            manager.run(module.operation)

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
    found = []

    def look(op: ir.Operation) -> ir.WalkResult:
        here = op.name
        if here == name:
            found.append(op.opview)
        inside = in_kernels or here not in KERNEL_MODULES or op.parent is None
        return ir.WalkResult.ADVANCE if inside else ir.WalkResult.SKIP

    module.operation.walk(look, ir.WalkOrder.PRE_ORDER)
    return found


def kernel_functions(module: ir.Module) -> list[ir.OpView]:
    """The gpu.func of every kernel, in program order."""
    return [
        op
        for nested in module.body.operations
        if nested.operation.name == "gpu.module"
        for op in nested.operation.regions[0].blocks[0].operations
        if op.operation.name == "gpu.func"
    ]


def walk(root: ir.Operation) -> list[ir.OpView]:
    """All ops below `root`, parents before children; the list stays valid while ops are replaced."""
    found: list[ir.OpView] = []
    for region in root.regions:
        for block in region:
            for op in block.operations:
                found.append(op)
                if len(op.operation.regions):
                    found.extend(walk(op.operation))
    return found


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
