"""From options to an artifact: cache, pipeline, code generation. The passes are on one page: pipeline.py."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import pathlib
import shlex
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spconv_compiler import bundle, env
from spconv_compiler.artifact import Artifact, pack_files
from spconv_compiler.cache import KernelCache, open_disk_cache
from spconv_compiler.cache_key import cache_key
from spconv_compiler.epilogue import DEFAULT_SLOPE, epilogue_of
from spconv_compiler.errors import CompileError, InputError
from spconv_compiler.options import CompileOptions, triple, whole
from spconv_compiler.schedules import check_schedule_name
from spconv_compiler.targets import CpuTarget, GpuTarget, Target, code_target, get_target, target_names
from spconv_compiler.toolchain import fingerprint

# Messages go where the program sends them; who asks for a level in the environment wants to see them at all.
_log = logging.getLogger("spconv_compiler")
_log.setLevel(env.LOG.get().upper())
if env.LOG.is_set():
    _log.addHandler(logging.StreamHandler())

if TYPE_CHECKING:
    from spconv_compiler.bindings import ir
    from spconv_compiler.level_options import AnyOptions
    from spconv_compiler.runner import Runner


def compile_conv(
    kernel_size: int | tuple[int, int, int],
    c_in: int,
    c_out: int,
    key_width: int = 32,
    *,
    dtype: str = "f32",
    out_dtype: str | None = None,
    dilation: int | tuple[int, int, int] = 1,
    bias: bool = False,
    activation: str = "none",
    negative_slope: float = DEFAULT_SLOPE,
    residual: bool = False,
    target: str | None = None,
    schedule: str = "auto",
    mapper: str = "auto",
) -> Artifact:
    """Compiles a submanifold convolution, or finds it in the memory or disk cache.

    Args:
        kernel_size, dilation: one number, or (z, y, x).
        c_in, c_out: channels.
        key_width: 32 when the padded box of coordinates has fewer than 2^31 cells over all batches, else 64.
        dtype: of features and weights ("bf16", "f16", "f32"); out_dtype: of the result, dtype by default.
        bias: whether a bias is added; residual: whether rows of out_dtype are.
        activation: "none", "relu", "leaky_relu" (with negative_slope), "gelu" or "silu", applied last.
        target: "auto", "cpu", "gfx950" or an x86-64 level; SPCONV_TARGET by default.
        schedule: name of a gemm schedule, or "auto".
        mapper: how a GPU builds the map: "dense_grid" or "z_delta"; "auto" compiles dense_grid, and a kernel that is
            loaded takes the one that suits the coordinates.

    Returns:
        The artifact: linked object, assembly, IR of each level, launch plan.

    Raises:
        InputError: an argument is not accepted.
        CompileError: a pass or the code generator refuses; the message ends with a folder that reproduces it.
        ToolchainError: no linker.
    """
    options = conv_options(
        kernel_size,
        c_in,
        c_out,
        key_width,
        dtype=dtype,
        out_dtype=out_dtype,
        dilation=dilation,
        bias=bias,
        activation=activation,
        negative_slope=negative_slope,
        residual=residual,
        target=target,
        schedule=schedule,
        mapper=mapper,
    )
    return compile_options(options)


def conv_options(
    kernel_size: int | tuple[int, int, int],
    c_in: int,
    c_out: int,
    key_width: int = 32,
    *,
    dtype: str = "f32",
    out_dtype: str | None = None,
    dilation: int | tuple[int, int, int] = 1,
    bias: bool = False,
    activation: str = "none",
    negative_slope: float = DEFAULT_SLOPE,
    residual: bool = False,
    target: str | None = None,
    schedule: str = "auto",
    mapper: str = "auto",
) -> CompileOptions:
    """The arguments of `compile_conv`, checked, with what the environment adds.

    Raises:
        InputError: an argument is not accepted.
    """
    if target is not None and not isinstance(target, str):
        raise InputError(f"target is {target!r}; accepted: {', '.join(target_names())}")
    resolved = get_target(env.TARGET.get() if target is None else target)
    check_schedule_name(schedule)
    epilogue = epilogue_of(activation, negative_slope)
    return CompileOptions(
        kernel_size=triple(kernel_size, "kernel_size"),
        c_in=whole(c_in, "c_in"),
        c_out=whole(c_out, "c_out"),
        key_width=whole(key_width, "key_width"),
        dtype=dtype,
        out_dtype=dtype if out_dtype is None else out_dtype,
        dilation=triple(dilation, "dilation"),
        bias=bool(bias),
        activation=epilogue.activation,
        negative_slope=epilogue.negative_slope,
        residual=bool(residual),
        target=resolved.name,
        schedule=schedule,
        mapper=mapper,
        verify=env.VERIFY.get(),
        dump_dir=str(env.DUMP_DIR.get() or ""),
        print_after=env.PRINT_AFTER.get(),
    )


def compile_options(options: AnyOptions) -> Artifact:
    """`compile_conv` for options that are already resolved."""
    if bundle.in_use():
        found = bundle.look_up(options, code_target(get_target(options.target)))
        if found is not None:
            return found
    options, target, parts = _resolved(options)
    cache = _kernel_cache()
    # A dump is asked for to be looked at: it must be written even when the kernel is in the cache.
    if options.dump_dir or options.print_after:
        return Artifact(cache_key(parts), _build(options, target))
    return cache.get_or_build(cache_key(parts), parts, lambda: _build(options, target))


def is_compiled(options: AnyOptions) -> bool:
    """Whether a kernel is in the memory or disk cache."""
    return cache_key(_resolved(options)[2]) in _kernel_cache()


def adopt(options: AnyOptions, files: Mapping[str, bytes]) -> None:
    """Puts what another process has compiled into the cache, unless it is there."""
    parts = _resolved(options)[2]
    _kernel_cache().get_or_build(cache_key(parts), parts, lambda: dict(files))


def _resolved(
    options: AnyOptions,
) -> tuple[AnyOptions, Target, dict[str, Any]]:
    """The options for the target whose code it is, that target, and the parts of the cache key."""
    target = code_target(get_target(options.target))
    options = dataclasses.replace(options, target=target.name)
    return options, target, {**options.key_parts(), "target": target.facts(), "toolchain": _toolchain(target)}


def clear_memory() -> None:
    """Forgets the kernels of this process; the disk cache keeps its entries."""
    _kernel_cache().clear_memory()


def _toolchain(target: Target) -> dict[str, str]:
    return fingerprint(host_cpu=isinstance(target, CpuTarget))


def _kernel_cache() -> KernelCache[Artifact]:
    """The process's cache, for the cache settings in force now."""
    return _cache_for(env.CACHE.get(), env.CACHE_DIR.get(), env.CACHE_MAX_MB.get())


@functools.lru_cache(maxsize=4)
def _cache_for(on: bool, root: pathlib.Path | None, max_mb: int) -> KernelCache[Artifact]:
    return KernelCache(Artifact, memory_size=256, disk=open_disk_cache())


def _build(options: AnyOptions, target: Target) -> dict[str, bytes]:
    """Compiles; a failure is repeated with dumps so that the message can point at them."""
    folder = pathlib.Path(options.dump_dir) / options.name if options.dump_dir else None
    try:
        return _compile(options, target, folder)
    except CompileError as error:
        failure = error
        if folder is None:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="spconv-failed-"))
            try:
                _compile(options, target, folder)
            except CompileError as again:
                failure = again
        failure.notes = (*failure.notes, f"dumps and replay.sh: {folder}")
        raise failure from None
    except OSError as error:
        if folder is None:
            raise
        raise InputError(f"dumps cannot be written to {folder} (SPCONV_DUMP_DIR): {error.strerror}") from error


def _compile(
    options: AnyOptions, target: Target, folder: pathlib.Path | None
) -> dict[str, bytes]:
    from spconv_compiler.bindings import ir
    from spconv_compiler.context import make_context
    from spconv_compiler.frontend import module_of
    from spconv_compiler.pipeline import check_print_after, stages_for
    from spconv_compiler.plan import extract_plan
    from spconv_compiler.runner import Runner

    start = time.perf_counter()
    stages = stages_for(target, options.schedule, _mapper(options))
    check_print_after(options.print_after, (item for stage in stages for item in stage.passes), env.PRINT_AFTER.name)
    runner = Runner(verify=options.verify, print_after=options.print_after, dump=folder)
    levels: dict[str, str] = {}
    with make_context(), ir.Location.unknown():
        module = module_of(options)
        levels["spconv"] = module.operation.get_asm()
        if folder is not None:
            _write_replay(folder, options, target, levels["spconv"])
        runner.write_dump("spconv.mlir", lambda: levels["spconv"])

        def reached(level: str, module: ir.Module) -> None:
            levels[level] = module.operation.get_asm(assume_verified=options.verify)

        runner.run_stages(module, stages, reached)
        plan = extract_plan(module)
        code, isa, kernels = _generate(module, target, runner, levels)
    timings = {name: round(seconds * 1e3, 3) for name, seconds in runner.timings.items()}
    meta = {"kernels": kernels, "milliseconds": timings, "total_ms": round((time.perf_counter() - start) * 1e3, 3)}
    return pack_files(options, plan, levels, code, isa, meta)


def _generate(
    module: ir.Module, target: Target, runner: Runner, levels: dict[str, str]
) -> tuple[bytes, str | None, Mapping[str, Any]]:
    """(code object, assembly text where the object is text, facts of each kernel); `levels` gets what it is made of."""
    start = time.perf_counter()
    code: bytes
    isa: str | None
    if isinstance(target, GpuTarget) and target.path[-1] == "nvvm":
        from spconv_compiler.codegen_ptx import emit_ptx

        ptx = emit_ptx(module, target)
        code, isa, kernels = ptx.object, ptx.isa, {name: dataclasses.asdict(k) for name, k in ptx.kernels.items()}
        runner.write_dump("kernel.s", lambda: ptx.isa)
    elif isinstance(target, GpuTarget):
        from spconv_compiler.codegen_gpu import emit_gpu, emit_isa
        from spconv_compiler.linker import toolkit_dir

        # Before the object: a kernel that does not fit is one to look at.
        runner.write_dump("kernel.s", lambda: emit_isa(module, target))
        gpu = emit_gpu(module, target, toolkit_dir())
        if gpu.level:
            levels[target.path[-1]] = gpu.level
            runner.write_dump("parted.mlir", lambda: gpu.level)
        code, isa, kernels = gpu.object, None, {name: dataclasses.asdict(k) for name, k in gpu.kernels.items()}
    else:
        from spconv_compiler.codegen_cpu import emit_cpu

        assert isinstance(target, CpuTarget)
        code, isa, kernels = emit_cpu(module, target), None, {}
    runner.timings["codegen"] = time.perf_counter() - start
    return code, isa, kernels


def _mapper(options: AnyOptions) -> str:
    """Levels that are built together have no choice of mapper."""
    return getattr(options, "mapper", "auto")


def _write_replay(folder: pathlib.Path, options: AnyOptions, target: Target, text: str) -> None:
    """Writes what repeats this compilation: options, pipeline, input and the spconv-opt line."""
    from spconv_compiler.pipeline import pipeline_text

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options.json").write_text(json.dumps(dataclasses.asdict(options), indent=1))
    (folder / "pipeline.txt").write_text(pipeline_text(target, options.schedule, _mapper(options)) + "\n")
    (folder / "input.mlir").write_text(text)
    line = [
        "spconv-opt",
        "--from-level=spconv",
        f"--to-level={target.path[-1]}",
        f"--target={target.name}",
        f"--schedule={options.schedule}",
        f"--mapper={_mapper(options)}",
    ]
    script = f'#!/bin/sh\ncd "$(dirname "$0")" && exec {shlex.join(line)} "$@" input.mlir\n'
    (folder / "replay.sh").write_text(script)
    (folder / "replay.sh").chmod(0o755)
