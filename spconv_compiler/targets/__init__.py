"""The targets: `get_target(name)` resolves what users write.

`cpu` means the best x86-64 level that this host can run; `auto` is `cpu` as long as no GPU runtime is found.
"""

from __future__ import annotations

from spconv_compiler.errors import InputError
from spconv_compiler.targets.base import CpuTarget, GpuTarget, MmaShape, Target, TileUnit
from spconv_compiler.targets.cpu import LEVELS
from spconv_compiler.targets.gfx950 import GFX950, GFX950_SIM
from spconv_compiler.targets.sm_90 import SM_90

__all__ = ["CpuTarget", "GpuTarget", "MmaShape", "Target", "TileUnit", "code_target", "get_target", "target_names"]

_TARGETS: dict[str, Target] = {target.name: target for target in (GFX950, GFX950_SIM, SM_90, *LEVELS)}


def target_names() -> list[str]:
    """Every name that get_target accepts."""
    return ["auto", "cpu", *_TARGETS]


def get_target(name: str) -> Target:
    """The target called `name`.

    Raises:
        InputError: the name is unknown, or it is `cpu` and this host has none of the supported levels.
    """
    if name in ("auto", "cpu"):
        return _host()
    if name not in _TARGETS:
        raise InputError(f"unknown target {name!r}; accepted: {', '.join(target_names())}")
    return _TARGETS[name]


def code_target(target: Target) -> Target:
    """The target whose code `target` runs: itself, or the GPU that it simulates."""
    name = target.code_of if isinstance(target, GpuTarget) else ""
    return _TARGETS[name] if name else target


def _host() -> Target:
    from spconv_compiler.tile_grant import tile_refusal
    from spconv_compiler.toolchain import host_cpu_features

    flags = host_cpu_features()
    for level in LEVELS:
        fits = flags.issuperset(level.requires) and flags.isdisjoint(level.slower_with)
        if fits and (level.tile_unit is None or tile_refusal() is None):
            return level
    missing = sorted(set(LEVELS[-1].requires) - flags)
    raise InputError(f"this processor lacks {', '.join(missing)}; the cpu target needs {LEVELS[-1].name} or better")
