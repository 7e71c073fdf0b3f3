"""The target with tile registers, and whether this process may use them."""

from __future__ import annotations

import pytest

from spconv_compiler.targets import CpuTarget, get_target
from spconv_compiler.tile_grant import tile_refusal
from spconv_compiler.toolchain import host_cpu_features


def _amx() -> CpuTarget:
    target = get_target("x86-64-v4-amx")
    assert isinstance(target, CpuTarget)
    return target


AMX = _amx()
assert AMX.tile_unit is not None
UNIT = AMX.tile_unit


def _missing() -> str | None:
    lacking = sorted(set(AMX.requires) - host_cpu_features())
    return f"this processor lacks {', '.join(lacking)}" if lacking else tile_refusal()


needs_tiles = pytest.mark.skipif(_missing() is not None, reason=str(_missing()))
