"""Where a node of an exported graph comes from: the user's line, for locations and messages."""

from __future__ import annotations

import pathlib
import re
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from spconv_compiler.errors import InputError

if TYPE_CHECKING:
    from spconv_compiler.bindings import ir

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
# Frames of the libraries between a user's line and the op.
_MODULES = str(pathlib.Path(__file__).parent.parent / "pytorch")
_NETWORK = str(pathlib.Path(__file__).parent)
_TORCH = f"{pathlib.PurePath('torch')}/"


class Line(NamedTuple):
    """A place in a Python file, and the submodule that ran there ("" for the model itself)."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "an unknown line"
        return f"{where}, in module {self.module!r}" if self.module else where


def line_of(node: Any) -> Line:
    """The innermost line that is not torch's or this package's, or else the innermost of all."""
    frames = [(m["file"], int(m["line"])) for m in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    mine = [frame for frame in frames if not is_library(frame[0])]
    file, line = (mine or frames or [("", 0)])[-1]
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return Line(file, line, str(stack[-1][0]) if stack else "")


def user_line(error: BaseException) -> Line:
    """The innermost line on an error's way that is not torch's or this package's."""
    frames = [(entry.filename, entry.lineno or 0) for entry in traceback.extract_tb(error.__traceback__)]
    mine = [frame for frame in frames if not is_library(frame[0]) and not frame[0].startswith(_NETWORK)]
    file, line = (mine or [("", 0)])[-1]
    return Line(file, line, "")


def location_of(node: Any) -> ir.Location:
    """The line as a location: loc("module"("file":line:0)); in the current context."""
    from spconv_compiler.bindings import ir

    line = line_of(node)
    place = ir.Location.file(line.file, line.line, 0) if line.file else ir.Location.unknown()
    return ir.Location.name(line.module or node.name, childLoc=place)


def refuse(node: Any, found: str, accepted: str) -> InputError:
    """The error for a node that cannot be compiled."""
    return InputError(f"node {node.name} ({node.target}): {found}; at {line_of(node)}; accepted: {accepted}")


def is_library(file: str) -> bool:
    """Whether a file is torch's or one of the modules' here."""
    return file.startswith(_MODULES) or f"site-packages/{_TORCH}" in file.replace("\\", "/")
