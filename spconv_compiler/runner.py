"""Runs passes. One hook between passes serves verification, printing, timing and dumps: one execution path."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.errors import CompileError, PassError, SpconvError, VerifyError
from spconv_compiler.levels import check_level
from spconv_compiler.passes.base import KERNEL_MODULES, Pass, Upstream, location_text
from spconv_compiler.pipeline import Stage

Hook = Callable[[str, ir.Module], None]


@dataclasses.dataclass
class Runner:
    """How passes are run.

    Attributes:
        verify: verify what a pass may have changed after every pass, and the level after every stage.
        print_after: pass name or "all": print to stderr after it.
        dump: folder that receives one file per pass, or None.
        timings: seconds per pass, filled while running.
    """

    verify: bool = True
    print_after: str = ""
    dump: pathlib.Path | None = None
    timings: dict[str, float] = dataclasses.field(default_factory=dict)
    _dumped: int = 0

    def run_stages(self, module: ir.Module, stages: Iterable[Stage], reached: Hook | None = None) -> None:
        """Runs whole stages; `reached(level, module)` is called at every level's end."""
        checked = ""
        for stage in stages:
            if self.verify and stage.source != checked:
                check_level(module, stage.source)
            checked = stage.result
            self.run_passes(module, stage.passes)
            if self.verify:
                check_level(module, stage.result)
            if reached is not None:
                reached(stage.result, module)

    def run_passes(self, module: ir.Module, passes: Sequence[Pass]) -> None:
        """Runs passes one after another.

        Raises:
            CompileError: a pass refuses the module, or leaves invalid IR behind.
        """
        verified = 0
        for pass_ in passes:
            label = pass_.label if isinstance(pass_, Upstream) else pass_.name
            before = module.operation.get_asm(enable_debug_info=True) if self.dump else ""
            start = time.perf_counter()
            try:
                with module.context:
                    pass_.run(module)
                if self.verify:
                    verified = self._verify(module, pass_, label, verified)
            except SpconvError as error:
                self._dump_failure(label, before)
                if isinstance(error, CompileError) and error.pass_name is None:
                    error.pass_name = label
                raise
            except ir.MLIRError as error:
                self._dump_failure(label, before)
                raise PassError(diagnostics(error), pass_name=label) from error
            self.timings[label] = self.timings.get(label, 0.0) + time.perf_counter() - start
            self._after(label, module)

    def _verify(self, module: ir.Module, pass_: Pass, label: str, verified: int) -> int:
        """Verifies what a pass may have changed, and returns how many kernels of the module are verified now.

        Passes from level stages on add kernels one after another, and the last of them is followed by one that makes
        the plan, after which all is verified: so a kernel need not be verified again for each that is added.
        """
        kernels = _kernels(module)
        parts = [module.operation]
        if pass_.needs == "stages" and verified <= len(kernels) and self.dump is None:
            host = [op for op in module.body.operations if op.operation.name not in KERNEL_MODULES]
            parts = [op.operation for op in (*host, *kernels[verified:])]
        try:
            for part in parts:
                part.verify()
        except ir.MLIRError as error:
            raise VerifyError(f"pass {label} left invalid IR: {diagnostics(error)}", pass_name=label) from error
        return len(kernels)

    def _after(self, label: str, module: ir.Module) -> None:
        if self.print_after in (label, "all"):
            print(f"// ----- after {label}\n{module}", file=sys.stderr)
        self.write_dump(f"{label}.mlir", lambda: module.operation.get_asm())

    def _dump_failure(self, label: str, before: str) -> None:
        if before:
            self.write_dump(f"FAILED-{label}-input.mlir", lambda: before)

    def write_dump(self, name: str, text: Callable[[], str]) -> None:
        """Writes the next numbered file of the dump folder, if there is one."""
        if self.dump is None:
            return
        self.dump.mkdir(parents=True, exist_ok=True)
        (self.dump / f"{self._dumped:02d}-{name}").write_text(text())
        self._dumped += 1


def _kernels(module: ir.Module) -> list[ir.OpView]:
    """What stands in the kernel modules."""
    modules = [op.operation for op in module.body.operations if op.operation.name in KERNEL_MODULES]
    return [op for nested in modules for block in nested.regions[0] for op in block.operations]


def diagnostics(error: ir.MLIRError) -> str:
    """The diagnostics of an MLIR error, one line each, with their places."""
    lines = []
    for item in error.error_diagnostics:
        lines.append(f"{location_text(item.location)}: {item.message}")
        lines.extend(f"{location_text(note.location)}: note: {note.message}" for note in item.notes)
    return "\n".join(lines) or str(error)
