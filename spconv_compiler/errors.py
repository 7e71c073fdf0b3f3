"""The errors that users see. Each message says what was found and what is accepted."""

from __future__ import annotations

import dataclasses


class SpconvError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(SpconvError, ValueError):
    """Tensors, files or arguments that an operation cannot accept."""


class ToolchainError(SpconvError, RuntimeError):
    """A part of the toolchain (linker, MLIR wheel) is missing or unusable."""


class LaunchError(SpconvError, RuntimeError):
    """A compiled kernel cannot be run with these sizes or on this device."""


class CacheWarning(UserWarning):
    """The on-disk cache cannot be used; compilation goes on without it."""


class CompileError(SpconvError):
    """Compilation failed.

    Attributes:
        message: what failed, without context.
        op: text of the operation concerned, or None.
        location: MLIR location text of the operation, or None.
        pass_name: the pass that was running, or None.
        level: the level of the IR at that time, or None.
        notes: what is supported, or what to change; one line each.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        location: str | None = None,
        pass_name: str | None = None,
        level: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.location = location
        self.pass_name = pass_name
        self.level = level
        self.notes = notes

    def __str__(self) -> str:
        lines = [self.message if self.location is None else f"{self.location}: {self.message}"]
        if self.pass_name is not None:
            lines.append(f"  in pass: {self.pass_name}")
        if self.level is not None:
            lines.append(f"  at level: {self.level}")
        if self.op is not None:
            lines.append(f"  op: {self.op}")
        lines.extend(f"  note: {note}" for note in self.notes)
        return "\n".join(lines)


class VerifyError(CompileError):
    """The IR does not parse, does not verify, or breaks the rule of its level."""


class PassError(CompileError):
    """A pass refuses its input."""


class CodegenError(CompileError):
    """The code generator or the linker failed."""


@dataclasses.dataclass(frozen=True)
class Rejection:
    """Why one schedule cannot serve one problem."""

    schedule: str
    reason: str


class ScheduleError(CompileError):
    """No schedule fits; every rejected schedule is listed with its reason."""

    def __init__(self, message: str, rejections: tuple[Rejection, ...] = (), **context: object) -> None:
        notes = tuple(f"schedule {r.schedule!r}: {r.reason}" for r in rejections)
        super().__init__(message, notes=notes, **context)  # type: ignore[arg-type]
        self.rejections = rejections
