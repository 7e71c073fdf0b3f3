"""`spconv-compile`: a convolution, given by numbers or as IR text, down to the level asked for.

    spconv-compile --kernel 3 --c-in 64 --c-out 128 --dtype bf16 --target gfx950 --emit isa
    spconv-compile conv.mlir --target gfx950 --emit gpu
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from spconv_compiler import env
from spconv_compiler.epilogue import ACTIVATIONS, DEFAULT_SLOPE
from spconv_compiler.errors import InputError, VerifyError
from spconv_compiler.options import DTYPES, CompileOptions, triple
from spconv_compiler.schedules import check_schedule_name
from spconv_compiler.schedules.cost import DENSITIES, SIZES
from spconv_compiler.schedules.mappers import check_mapper_name
from spconv_compiler.targets import GpuTarget, Target, get_target, target_names
from spconv_compiler.tools.console import USAGE, guarded

if TYPE_CHECKING:
    from spconv_compiler.bindings import ir
    from spconv_compiler.pipeline import Stage

EMIT = ("spconv", "stages", "gpu", "rocdl", "nvvm", "loops", "cpu", "isa", "object", "plan", "schedules")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code (1: compilation failed, 2: bad usage)."""
    return guarded("spconv-compile", lambda: _run(_parser().parse_args(argv)), bad_input=USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spconv-compile",
        description="Compiles a convolution, given by numbers or as IR text, down to the level asked for.",
    )
    parser.add_argument("file", nargs="?", help="IR text at level spconv ('-' for stdin); instead of --kernel …")
    parser.add_argument("--emit", choices=EMIT, default="object", help="what to print (default: object)")
    parser.add_argument("--target", default=None, help=f"one of {', '.join(target_names())} (default: SPCONV_TARGET)")
    parser.add_argument("--schedule", default="auto", help="name of a gemm schedule (default: auto)")
    parser.add_argument("--explain", action="store_true", help="the same as --emit=schedules")
    parser.add_argument("--size", choices=tuple(SIZES), default="many", help="rows to explain for (default: many)")
    parser.add_argument("--density", choices=tuple(DENSITIES), default="usual", help="neighbours (default: usual)")
    parser.add_argument("--mapper", default="auto", help="how a GPU builds the map: dense_grid or z_delta")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="file to write (default: stdout)")
    parser.add_argument("--print-pipeline", action="store_true", help="print the passes of the target and stop")
    shape = parser.add_argument_group("a convolution by numbers")
    shape.add_argument("--kernel", type=int, nargs="+", default=[3], metavar="K", help="K, or z y x (default: 3)")
    shape.add_argument("--dilation", type=int, nargs="+", default=[1], metavar="D")
    shape.add_argument("--c-in", type=int)
    shape.add_argument("--c-out", type=int)
    shape.add_argument("--key-width", type=int, choices=(32, 64), default=32)
    shape.add_argument("--dtype", choices=DTYPES, default="bf16")
    shape.add_argument("--out-dtype", choices=DTYPES)
    shape.add_argument("--bias", action="store_true")
    shape.add_argument("--activation", choices=ACTIVATIONS, default="none")
    shape.add_argument("--negative-slope", type=float, default=DEFAULT_SLOPE, help="of leaky_relu")
    shape.add_argument("--residual", action="store_true", help="add rows of the result's type before the activation")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    check_schedule_name(arguments.schedule)
    check_mapper_name(arguments.mapper)
    if arguments.file is not None and (arguments.c_in is not None or arguments.c_out is not None):
        raise InputError(f"{arguments.file} and --c-in or --c-out are given; accepted: a file, or numbers")
    target = get_target(arguments.target or env.TARGET.get())
    if arguments.print_pipeline:
        from spconv_compiler.pipeline import pipeline_text

        print(pipeline_text(target, arguments.schedule, arguments.mapper))
        return 0
    if arguments.explain or arguments.emit == "schedules":
        _write(_explain(arguments, target), arguments.output)
    elif arguments.file is not None:
        _write(_from_text(arguments, target), arguments.output)
    else:
        _write(_from_numbers(arguments, target), arguments.output)
    return 0


def _options(arguments: argparse.Namespace, target: Target) -> CompileOptions:
    if arguments.c_in is None or arguments.c_out is None:
        raise InputError("nothing to compile; accepted: a file, or --c-in and --c-out")
    return CompileOptions(
        kernel_size=triple(_one_or_three(arguments.kernel), "--kernel"),
        c_in=arguments.c_in,
        c_out=arguments.c_out,
        key_width=arguments.key_width,
        dtype=arguments.dtype,
        out_dtype=arguments.out_dtype or arguments.dtype,
        dilation=triple(_one_or_three(arguments.dilation), "--dilation"),
        bias=arguments.bias,
        activation=arguments.activation,
        negative_slope=arguments.negative_slope,
        residual=arguments.residual,
        target=target.name,
        schedule=arguments.schedule,
        mapper=arguments.mapper,
        verify=env.VERIFY.get(),
        dump_dir=str(env.DUMP_DIR.get() or ""),
        print_after=env.PRINT_AFTER.get(),
    )


def _one_or_three(numbers: list[int]) -> int | list[int]:
    return numbers[0] if len(numbers) == 1 else numbers


def _from_numbers(arguments: argparse.Namespace, target: Target) -> str | bytes:
    from spconv_compiler.compiler import compile_options

    options = _options(arguments, target)
    if arguments.emit in target.path:
        from spconv_compiler.bindings import ir
        from spconv_compiler.context import make_context
        from spconv_compiler.frontend import conv_module

        with make_context(), ir.Location.unknown():
            return _lower(conv_module(options), target, arguments)
    artifact = compile_options(options)
    if arguments.emit == "plan":
        return artifact.plan.to_json() + "\n"
    if arguments.emit == "isa":
        if artifact.isa is None:
            raise InputError(f"{target.name} has no assembly text; accepted with it: {_accepted(target)}")
        return artifact.isa
    if arguments.emit == "object":
        return artifact.object
    raise InputError(f"--emit={arguments.emit} is not a stage of {target.name}; accepted: {_accepted(target)}")


def _from_text(arguments: argparse.Namespace, target: Target) -> str | bytes:
    from spconv_compiler.bindings import ir
    from spconv_compiler.compiler import _generate
    from spconv_compiler.context import make_context
    from spconv_compiler.pipeline import stages_for
    from spconv_compiler.plan import extract_plan
    from spconv_compiler.runner import Runner

    with make_context(), ir.Location.unknown():
        module = _parse(arguments.file)
        if arguments.emit in target.path:
            return _lower(module, target, arguments)
        runner = Runner(verify=env.VERIFY.get(), print_after=env.PRINT_AFTER.get())
        stages = stages_for(target, arguments.schedule, arguments.mapper)
        _check_print_after(stages)
        runner.run_stages(module, stages)
        if arguments.emit == "plan":
            return extract_plan(module).to_json() + "\n"
        if arguments.emit == "isa" and isinstance(target, GpuTarget) and target.path[-1] == "rocdl":
            from spconv_compiler.codegen_gpu import emit_isa

            return emit_isa(module, target)
        code, isa, _ = _generate(module, target, runner, {})
        if arguments.emit == "object":
            return code
        if arguments.emit == "isa" and isa is not None:
            return isa
    raise InputError(f"--emit={arguments.emit} is not available for {target.name}; accepted: {_accepted(target)}")


def _parse(file: str) -> ir.Module:
    """The module in `file` ('-': stdin), parsed and verified in the current context."""
    from spconv_compiler.bindings import ir
    from spconv_compiler.runner import diagnostics
    from spconv_compiler.tools.opt import read_text

    text = read_text(file)
    try:
        # Only a parser that opens the file itself knows its name, which locations then have.
        return ir.Module.parse(text) if file == "-" else ir.Module.parseFile(file)
    except ir.MLIRError as error:
        raise VerifyError(f"{file} is refused:\n{diagnostics(error)}") from None


def _lower(module: ir.Module, target: Target, arguments: argparse.Namespace) -> str:
    from spconv_compiler.pipeline import passes_between
    from spconv_compiler.runner import Runner

    runner = Runner(verify=env.VERIFY.get(), print_after=env.PRINT_AFTER.get())
    stages = passes_between(target, "spconv", arguments.emit, arguments.schedule, arguments.mapper)
    _check_print_after(stages)
    runner.run_stages(module, stages)
    text: str = module.operation.get_asm()
    return text


def _check_print_after(stages: list[Stage]) -> None:
    from spconv_compiler.pipeline import check_print_after

    check_print_after(env.PRINT_AFTER.get(), (item for stage in stages for item in stage.passes), env.PRINT_AFTER.name)


def _accepted(target: Target) -> str:
    extra = ("isa", "object", "plan") if "gpu" in target.path else ("object", "plan")
    return ", ".join((*target.path, *extra))


def _explain(arguments: argparse.Namespace, target: Target) -> str:
    from spconv_compiler.schedules import Problem, Workload, explain

    options = _options(arguments, target)
    problem = Problem(options.taps, options.c_in, options.c_out, options.dtype)
    lines = explain(problem, target, Workload(arguments.size, arguments.density))
    return "\n".join(lines) + "\n"


def _write(result: Any, path: pathlib.Path | None) -> None:
    data = result if isinstance(result, bytes) else result.encode()
    if path is not None:
        path.write_bytes(data)
    elif isinstance(result, bytes) and sys.stdout.isatty():
        raise InputError("a code object does not go to a terminal; give -o FILE or redirect")
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
