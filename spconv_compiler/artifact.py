"""What compilation gives: the code object, the launch plan, and the text of every level."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spconv_compiler.options import CompileOptions
from spconv_compiler.plan import Plan

if TYPE_CHECKING:
    from spconv_compiler.sparse_options import SparseOptions

OBJECT = "kernel.elf"
ISA = "kernel.s"
PLAN = "plan.json"
META = "meta.json"
_LEVEL_ORDER = ("spconv", "stages", "gpu", "rocdl", "nvvm", "loops", "cpu")


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A compiled convolution.

    Attributes:
        key: cache key, 64 hexadecimal digits; artifacts are equal when their keys are.
        files: every file by name, as the cache stores them.
    """

    key: str
    files: Mapping[str, bytes] = dataclasses.field(repr=False, compare=False)

    @property
    def object(self) -> bytes:
        """The linked code object: an ELF shared object (cpu) or an AMD code object (gfx950)."""
        return self.files[OBJECT]

    @property
    def isa(self) -> str | None:
        """Assembly text, where the target has one."""
        return self.files[ISA].decode() if ISA in self.files else None

    @functools.cached_property
    def plan(self) -> Plan:
        """The launch plan."""
        return Plan.from_json(self.files[PLAN])

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """Options, milliseconds per pass, and per kernel what the code object's metadata says."""
        data: dict[str, Any] = json.loads(self.files[META])
        return data

    @property
    def levels(self) -> dict[str, str]:
        """The IR at every level, by level name, in the order that compilation went through them."""
        found = {
            name.removeprefix("level-").removesuffix(".mlir"): text.decode()
            for name, text in self.files.items()
            if name.startswith("level-")
        }
        return {name: found[name] for name in sorted(found, key=_LEVEL_ORDER.index)}


def pack_files(
    options: CompileOptions | SparseOptions,
    plan: Plan,
    levels: Mapping[str, str],
    code: bytes,
    isa: str | None,
    meta: Mapping[str, Any],
) -> dict[str, bytes]:
    """The files of an artifact."""
    files = {
        OBJECT: code,
        PLAN: plan.to_json().encode(),
        META: json.dumps({"options": dataclasses.asdict(options), **meta}, indent=1).encode(),
        **{f"level-{name}.mlir": text.encode() for name, text in levels.items()},
    }
    if isa is not None:
        files[ISA] = isa.encode()
    return files
