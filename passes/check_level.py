"""Checks the rule of a level; changes nothing.

    spconv-opt -p check-level{level=stages}
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.errors import InputError
from spconv_compiler.levels import LEVELS, check_level
from spconv_compiler.passes.base import Pass


@dataclasses.dataclass(frozen=True)
class CheckLevel(Pass):
    """See the module."""

    level: str = "spconv"
    name: ClassVar[str] = "check-level"

    def run(self, module: ir.Module) -> None:
        if self.level not in LEVELS:
            raise InputError(f"unknown level {self.level!r}; accepted: {', '.join(LEVELS)}")
        check_level(module, self.level)
