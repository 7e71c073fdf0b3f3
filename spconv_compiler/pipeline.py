"""THE page: which passes take one level to the next, in order, and why in that order.

A target names the levels it goes through (`Target.path`); a stage is looked up by its two levels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from spconv_compiler.errors import InputError
from spconv_compiler.passes.base import Pass, Upstream
from spconv_compiler.passes.registry import pass_class
from spconv_compiler.targets import CpuTarget, GpuTarget, Target


@dataclasses.dataclass(frozen=True)
class Stage:
    """The passes from one level to the next."""

    source: str
    result: str
    passes: tuple[Pass, ...]


def stages_for(target: Target, schedule: str = "auto", mapper: str = "auto") -> list[Stage]:
    """Every stage from level spconv to the target's last level before the object."""
    levels = target.path
    return [_stage(low, high, target, schedule, mapper) for low, high in zip(levels, levels[1:], strict=False)]


def passes_between(
    target: Target, source: str, result: str, schedule: str = "auto", mapper: str = "auto"
) -> list[Stage]:
    """The stages from level `source` to level `result` of a target.

    Raises:
        InputError: the target does not go through these levels in this order.
    """
    path = target.path
    if source not in path or result not in path or path.index(source) > path.index(result):
        raise InputError(f"no way from level {source} to {result} on {target.name}; its levels: {' → '.join(path)}")
    levels = path[path.index(source) : path.index(result) + 1]
    return [_stage(low, high, target, schedule, mapper) for low, high in zip(levels, levels[1:], strict=False)]


def check_print_after(name: str, passes: Iterable[Pass], source: str) -> None:
    """Checks that a pass called `name` ("" and "all" are fine) is among those that will run.

    Raises:
        InputError: it is not; the message names `source`, where the name came from.
    """
    labels = [getattr(item, "label", item.name) for item in passes]
    if name not in ("", "all", *labels):
        raise InputError(f"{source} {name}: no such pass runs; accepted: {', '.join(['all', *labels])}")


def pipeline_text(target: Target, schedule: str = "auto", mapper: str = "auto") -> str:
    """The whole pipeline as text: for the cache key, dumps and spconv-compile --print-pipeline."""
    lines = []
    for stage in stages_for(target, schedule, mapper):
        lines.append(f"// {stage.source} → {stage.result}")
        lines.extend(str(item) for item in stage.passes)
    return "\n".join(lines)


def _stage(source: str, result: str, target: Target, schedule: str, mapper: str) -> Stage:
    def ours(name: str, **options: str) -> Pass:
        return pass_class(name)(**options)

    def for_target(name: str) -> Pass:
        return ours(name, target=target.name)

    passes: tuple[Pass, ...]
    match (source, result):
        case ("spconv", "stages"):
            passes = (
                Upstream("share-convolutions", "cse"),
                ours("convert-spconv-to-stages"),
                # Two layers over one coordinate set have equal map and compact ops by now: cse leaves one.
                Upstream("share-maps", "cse"),
                ours("choose-schedule", target=target.name, schedule=schedule, mapper=mapper),
                # Needs the schedule: only one that owns its rows can take the epilogue.
                ours("fuse-epilogue"),
            )
        case ("stages", "gpu"):
            passes = (
                # Producers before consumers: each pass finds its operands as buffers already.
                for_target("convert-output-coords-to-gpu"),
                for_target("convert-level-maps-to-gpu"),
                for_target("convert-frame-to-gpu"),
                for_target("convert-map-to-gpu"),
                for_target("convert-cross-map-to-gpu"),
                for_target("convert-compact-to-gpu"),
                for_target("convert-cross-compact-to-gpu"),
                for_target("convert-weight-to-gpu"),
                # The gemm fills the rows it adds into, as the fill op behind its init says: fill goes after it.
                for_target("convert-gemm-to-gpu"),
                for_target("convert-pool-to-gpu"),
                for_target("convert-rows-to-gpu"),
                ours("convert-host-to-plan"),
                Upstream("clean-gpu", "canonicalize,cse"),
            )
        case ("gpu", "rocdl"):
            assert isinstance(target, GpuTarget)
            from spconv_compiler.passes.gpu.upstream import gpu_to_rocdl

            passes = (
                # Tile ops first: the upstream conversions do not know them.
                for_target("lower-mma-to-mfma"),
                for_target("lower-memory-to-buffer"),
                Upstream("gpu-to-rocdl", gpu_to_rocdl(target)),
                ours("relax-local-atomics"),
            )
        case ("gpu", "nvvm"):
            assert isinstance(target, GpuTarget)
            from spconv_compiler.passes.gpu.upstream import gpu_to_nvvm

            passes = (
                for_target("fit-waves"),
                for_target("lower-memory-to-global"),
                ours("lower-to-intrinsics"),
                # In front of all that the passes before it have put into kernels.
                ours("overlap-launches"),
                Upstream("gpu-to-nvvm", gpu_to_nvvm()),
            )
        case ("stages", "loops"):
            passes = (
                for_target("convert-output-coords-to-loops"),
                for_target("convert-map-to-loops"),
                for_target("convert-cross-map-to-loops"),
                for_target("convert-compact-to-loops"),
                for_target("convert-cross-compact-to-loops"),
                for_target("convert-weight-to-loops"),
                # The gemm reads the bias from the fill op behind its init: fill goes after it.
                for_target("convert-gemm-to-loops"),
                for_target("convert-pool-to-loops"),
                for_target("convert-rows-to-loops"),
                ours("convert-host-to-plan"),
                Upstream("clean-loops", "canonicalize,cse"),
            )
        case ("loops", "cpu"):
            assert isinstance(target, CpuTarget)
            from spconv_compiler.passes.cpu.upstream import loops_to_llvm

            passes = (Upstream("loops-to-llvm", loops_to_llvm(target)),)
        case _:
            raise InputError(f"no stage from level {source} to {result}")
    return Stage(source, result, passes)
