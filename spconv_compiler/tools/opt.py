"""`spconv-opt`: reads MLIR text, runs passes or whole stages on it, prints the result.

    spconv-opt -p 'convert-spconv-to-stages,choose-schedule{target=gfx950}' conv.mlir
    spconv-opt --from-level spconv --to-level rocdl --target gfx950 conv.mlir

Exit codes: 0 done; 1 the input is refused, or a diagnostic was not as expected; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spconv_compiler import env
from spconv_compiler.errors import CompileError, InputError, SpconvError
from spconv_compiler.tools.console import guarded
from spconv_compiler.tools.split_input import SEPARATOR, split_input

if TYPE_CHECKING:
    from spconv_compiler.bindings import ir
    from spconv_compiler.tools.verify_diagnostics import Diagnostic

    Run = Callable[[ir.Module], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the program's) and returns the exit code."""
    return guarded("spconv-opt", lambda: _main(_parser().parse_args(argv)))


def _main(arguments: argparse.Namespace) -> int:
    try:
        if _informed(arguments):
            return 0
        run = _plan(arguments)
    except SpconvError as error:
        print(f"spconv-opt: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    try:
        text = read_text(arguments.file)
        cases = split_input(text) if arguments.split_input_file else [text]
        name = "<stdin>" if arguments.file == "-" else arguments.file
        if arguments.verify_diagnostics:
            return _verify(cases, name, run)
        return _print(cases, name, run, arguments)
    except SpconvError as error:
        print(f"spconv-opt: error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spconv-opt", description="Run passes, or all passes between two levels, on MLIR text."
    )
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="the input; - or nothing is stdin")
    what = parser.add_argument_group("what to run (without any: parse, verify and print)")
    what.add_argument(
        "-p",
        "--passes",
        action="append",
        metavar="PASS{OPTION=VALUE},…",
        help="these passes, ours or upstream's; may be given several times",
    )
    what.add_argument("--from-level", metavar="LEVEL", help="the level of the input (default: spconv)")
    what.add_argument("--to-level", metavar="LEVEL", help="run every pass up to this level")
    what.add_argument("--target", help="the target of --to-level (default: SPCONV_TARGET)")
    what.add_argument("--schedule", help="the gemm schedule of --to-level (default: auto)")
    what.add_argument("--mapper", help="the mapper of --to-level (default: auto)")
    how = parser.add_argument_group("how")
    how.add_argument("-o", metavar="FILE", dest="output", help="write here instead of stdout")
    how.add_argument("--generic", action="store_true", help="print ops in generic form")
    how.add_argument("--print-after", default="", metavar="PASS|all", help="print to stderr after this pass")
    how.add_argument("--split-input-file", action="store_true", help=f"the input is cases between {SEPARATOR} lines")
    how.add_argument("--verify-diagnostics", action="store_true", help="check expected-error comments; print no result")
    about = parser.add_argument_group("about")
    about.add_argument("--list-passes", action="store_true", help="names, options and levels of our passes")
    about.add_argument("--list-levels", action="store_true", help="the levels and the rule of each")
    about.add_argument("--help-env", action="store_true", help="the environment variables and their values")
    return parser


def _informed(arguments: argparse.Namespace) -> bool:
    """Prints what the `about` options ask for; False when there are none."""
    if arguments.help_env:
        print(env.describe())
    if arguments.list_levels:
        from spconv_compiler.levels import LEVELS

        width = max(map(len, LEVELS))
        for level in LEVELS.values():
            print(f"{level.name:<{width}}  {level.says}")
    if arguments.list_passes:
        from spconv_compiler.passes.registry import PASS_NAMES

        for name in PASS_NAMES:
            print(_pass_line(name))
    return bool(arguments.help_env or arguments.list_levels or arguments.list_passes)


def _pass_line(name: str) -> str:
    import dataclasses

    from spconv_compiler.passes.registry import pass_class

    class_ = pass_class(name)
    options = " ".join(f"{field.name.replace('_', '-')}={field.default}" for field in dataclasses.fields(class_))
    shown = f"{name}{{{options}}}" if options else name
    levels = f"{class_.needs or 'any'} → {class_.gives or 'same'}"
    first = (sys.modules[class_.__module__].__doc__ or "").strip().partition("\n")[0]
    return f"{shown}\n    {levels}: {first}"


def _plan(arguments: argparse.Namespace) -> Run:
    """What the command line asks to run on a module.

    Raises:
        InputError: the request makes no sense: unknown pass, level or target, or options that exclude another.
    """
    by_level = [name for name in ("from_level", "to_level", "target", "schedule", "mapper") if getattr(arguments, name)]
    if arguments.passes is not None and by_level:
        raise InputError(f"-p and --{by_level[0].replace('_', '-')} exclude each other")
    if by_level and not arguments.to_level:
        raise InputError(f"--{by_level[0].replace('_', '-')} needs --to-level")

    from spconv_compiler.passes.registry import parse_passes
    from spconv_compiler.pipeline import check_print_after
    from spconv_compiler.runner import Runner

    if not by_level:
        passes = parse_passes(",".join(arguments.passes or []))
        check_print_after(arguments.print_after, passes, "--print-after")
        return lambda module: Runner(print_after=arguments.print_after).run_passes(module, passes)

    from spconv_compiler.levels import LEVELS, check_level
    from spconv_compiler.pipeline import passes_between
    from spconv_compiler.targets import get_target

    source = arguments.from_level or "spconv"
    for level in (source, arguments.to_level):
        if level not in LEVELS:
            raise InputError(f"unknown level {level!r}; accepted: {', '.join(LEVELS)}")
    target = get_target(arguments.target or env.TARGET.get())
    wanted = (arguments.schedule or "auto", arguments.mapper or "auto")
    stages = passes_between(target, source, arguments.to_level, *wanted)
    check_print_after(arguments.print_after, (item for stage in stages for item in stage.passes), "--print-after")

    def run(module: ir.Module) -> None:
        check_level(module, source)
        Runner(print_after=arguments.print_after).run_stages(module, stages)

    return run


def read_text(file: str) -> str:
    """The text of `file`.

    Raises:
        InputError: it cannot be read, or is not text.
    """
    try:
        data = sys.stdin.buffer.read() if file == "-" else pathlib.Path(file).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not MLIR text: byte {error.start} is not UTF-8") from error


def _print(cases: list[str], name: str, run: Run, arguments: argparse.Namespace) -> int:
    results = []
    failed = False
    for case in cases:
        text, found, context = _process(case, run, generic=arguments.generic)
        for item in found:
            print(_render(item, name, case), file=sys.stderr)
        if text is None:
            failed = True
            if context:
                print(f"note: {context}", file=sys.stderr)
        else:
            results.append(text)
    if failed:
        return 1
    output = f"\n{SEPARATOR}\n".join(result.rstrip("\n") for result in results) + "\n"
    if arguments.output is None:
        sys.stdout.write(output)
        sys.stdout.flush()
        return 0
    try:
        pathlib.Path(arguments.output).write_text(output, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {arguments.output}: {error.strerror}") from error
    return 0


def _verify(cases: list[str], name: str, run: Run) -> int:
    from spconv_compiler.tools.verify_diagnostics import mismatches

    complaints = [line for case in cases for line in mismatches(case, _process(case, run)[1])]
    for complaint in complaints:
        print(f"{name}: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _process(case: str, run: Run, *, generic: bool = False) -> tuple[str | None, list[Diagnostic], str]:
    """(printed result or None when it is refused, diagnostics, where in the pipeline the fault was found)."""
    from spconv_compiler.bindings import ir
    from spconv_compiler.context import make_context
    from spconv_compiler.tools.verify_diagnostics import Diagnostic, from_error, from_mlir

    found: list[Diagnostic] = []

    def collect(item: ir.Diagnostic) -> bool:
        found.extend(from_mlir(item))
        return True

    with make_context() as context, ir.Location.unknown():
        handler = context.attach_diagnostic_handler(collect)
        try:
            module = ir.Module.parse(case)
            run(module)
            return module.operation.get_asm(print_generic_op_form=generic), found, ""
        except CompileError as error:
            found.extend(from_error(error))
            return None, found, _where(error)
        except ir.MLIRError as error:
            found.extend(from_error(error))
            return None, found, ""
        except InputError as error:
            found.append(Diagnostic("error", str(error)))
            return None, found, ""
        finally:
            handler.detach()


def _where(error: CompileError) -> str:
    parts = [f"in pass {error.pass_name}" if error.pass_name else "", f"at level {error.level}" if error.level else ""]
    text = ", ".join(filter(None, parts))
    return f"{text}: {error.op}" if text and error.op else text


def _render(found: Diagnostic, name: str, case: str) -> str:
    """`file:line:column: kind: message`, with the line and a caret where it is in the input."""
    from spconv_compiler.tools.verify_diagnostics import SOURCE

    if not found.line:
        return f"{name}: {found.kind}: {found.message}"
    inside = found.file == SOURCE
    text = f"{name if inside else found.file}:{found.line}:{found.column}: {found.kind}: {found.message}"
    lines = case.split("\n")
    if not inside or not found.line <= len(lines) or found.kind == "note":
        return text
    return f"{text}\n  {lines[found.line - 1]}\n  {' ' * (found.column - 1)}^"


if __name__ == "__main__":
    sys.exit(main())
