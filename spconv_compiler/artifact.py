"""What compilation gives: the code object, the launch plan, and the text of every level."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spconv_compiler.plan import Plan

if TYPE_CHECKING:
    from spconv_compiler.level_options import AnyOptions

OBJECT = "kernel.elf"
ISA = "kernel.s"
PLAN = "plan.json"
META = "meta.json"
_LEVEL = "level-{}.mlir"
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
        """Assembly text, where the target has one; for gfx950 it is generated when it is first asked for.

        Raises:
            ToolchainError: flydsl is not installed.
            CodegenError: the flydsl that is installed gives other code than the one that made the object.
        """
        return self.files[ISA].decode() if ISA in self.files else self._generated_isa

    @functools.cached_property
    def _generated_isa(self) -> str | None:
        """Of the text of level rocdl, and compared with what the object says of its kernels."""
        if _LEVEL.format("rocdl") not in self.files:
            return None
        from spconv_compiler.codegen_gpu import isa_of
        from spconv_compiler.targets import GpuTarget, get_target

        target = get_target(self.meta["options"]["target"])
        assert isinstance(target, GpuTarget)
        return isa_of(self.object, self.levels["rocdl"], target)

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
    options: AnyOptions,
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
        **{_LEVEL.format(name): text.encode() for name, text in levels.items()},
    }
    if isa is not None:
        files[ISA] = isa.encode()
    return files
