"""The levels of the IR and the rule of each: which ops may stand on the host side and inside kernels.

A module at level `gpu`, `rocdl`, `nvvm`, `loops` or `cpu` has a host plan (a func.func with spconv.symbol, alloc and
launch) and kernels in one nested module (gpu.module or module).
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.errors import VerifyError
from spconv_compiler.passes.base import location_text

_PLAN = ("func.", "spconv.symbol", "spconv.alloc", "spconv.argument", "spconv.launch")


@dataclasses.dataclass(frozen=True)
class Level:
    """A named state of the IR.

    Attributes:
        name: as in --emit and --to-level.
        says: the rule, for messages.
        host: prefixes of op names allowed outside kernels.
        kernels: prefixes of op names allowed inside the kernel module; empty: there is none.
    """

    name: str
    says: str
    host: tuple[str, ...]
    kernels: tuple[str, ...] = ()


LEVELS = {
    level.name: level
    for level in (
        Level(
            "spconv",
            "functions of convolutions and pointwise ops on tensors; no kernels, no stages",
            host=(
                "func.",
                "spconv.subm_conv3d",
                "spconv.output_coords",
                "spconv.union_coords",
                "spconv.sparse_",
                "spconv.level_maps",
                "spconv.place_coords",
                "spconv.parameter",
                "spconv.pointwise",
                "spconv.concat",
                "spconv.affine",
                "spconv.norm_",
                "spconv.scale_",
            ),
        ),
        Level(
            "stages",
            "functions of maps, compact, pack_weight, fill, gemm, pool and work on rows; no convolutions",
            host=(
                "func.",
                "spconv.map",
                "spconv.compact",
                "spconv.output_coords",
                "spconv.cross_",
                "spconv.level_maps",
                "spconv.place_coords",
                "spconv.pool",
                "spconv.pack_weight",
                "spconv.fill",
                "spconv.gemm",
                "spconv.apply_epilogue",
                "spconv.affine",
                "spconv.concat",
            ),
        ),
        Level(
            "gpu",
            "a host plan, and gpu.func kernels of scf, arith, math, vector, memref and spconv.tile_* ops; in kernels "
            "of a schedule for one target also that target's own",
            host=_PLAN,
            kernels=("gpu.", "scf.", "arith.", "math.", "vector.", "memref.", "spconv.tile_", "nvvm.", "llvm."),
        ),
        Level(
            "rocdl",
            "a host plan, and kernels of the llvm and rocdl dialects only",
            host=_PLAN,
            kernels=("llvm.", "rocdl."),
        ),
        Level(
            "nvvm",
            "a host plan, and kernels of the llvm and nvvm dialects only",
            host=_PLAN,
            kernels=("llvm.", "nvvm."),
        ),
        Level(
            "loops",
            "a host plan, and functions of scf, arith, math, vector and llvm memory ops",
            host=_PLAN,
            kernels=("func.", "scf.", "arith.", "math.", "vector.", "llvm."),
        ),
        Level("cpu", "a host plan, and functions of the llvm dialect only", host=_PLAN, kernels=("llvm.",)),
    )
}


def check_level(module: ir.Module, name: str) -> None:
    """Checks that `module` keeps the rule of level `name`.

    Raises:
        VerifyError: an op is not allowed there; the message names it, its place and the rule.
    """
    level = LEVELS[name]
    for op in module.body.operations:
        if op.operation.name in ("gpu.module", "builtin.module"):
            _check(op.operation, level, level.kernels, "inside kernels")
        else:
            _check_one(op.operation, level, level.host, "on the host side")
            _check(op.operation, level, level.host, "on the host side")


def _check(root: ir.Operation, level: Level, allowed: tuple[str, ...], where: str) -> None:
    """Checks all ops below `root`."""
    if not allowed:
        _refuse(root, level, where)
    known: set[str] = set()
    refused: list[ir.Operation] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        if name not in known:
            # An exception would lose its type on the way through MLIR.
            if not name.startswith(allowed) and op != root:
                refused.append(op)
                return ir.WalkResult.INTERRUPT
            known.add(name)
        return ir.WalkResult.ADVANCE

    root.walk(look, ir.WalkOrder.PRE_ORDER)
    for op in refused:
        _refuse(op, level, where)


def _check_one(op: ir.Operation, level: Level, allowed: tuple[str, ...], where: str) -> None:
    if not op.name.startswith(allowed):
        _refuse(op, level, where)


def _refuse(op: ir.Operation, level: Level, where: str) -> None:
    raise VerifyError(
        f"{op.name} is not allowed {where} at level {level.name}",
        op=op.get_asm(skip_regions=True),
        location=location_text(op.location),
        level=level.name,
        notes=(f"level {level.name}: {level.says}",),
    )
