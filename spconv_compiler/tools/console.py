"""What the command-line tools share: tables, a progress bar, errors and exit codes.

Results go to stdout, progress and errors to stderr. Where stdout is no terminal the text has no control codes;
where stderr is none there is no bar.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from spconv_compiler.errors import CacheWarning, InputError, SpconvError

USAGE, FAILURE, INTERRUPTED = 2, 1, 130


def guarded(tool: str, run: Callable[[], int], *, bad_input: int = FAILURE) -> int:
    """Runs a tool and returns its exit code; what users may meet becomes a message, without a traceback.

    `run` reads the command line too: an interrupt may come at any time. `bad_input` is the code for an InputError.
    """
    try:
        _prepare_streams()
        with _plain_warnings(tool):
            code = run()
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse has printed its message
        return stop.code if isinstance(stop.code, int) else USAGE
    except InputError as error:
        print(f"{tool}: error: {error}", file=sys.stderr)
        return bad_input
    except SpconvError as error:
        print(f"{tool}: error: {error}", file=sys.stderr)
    except BrokenPipeError:
        # The reader has gone, as in `… | head`; nothing is left to say to it.
        _drop_output()
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else "" if _has_folder() else "the current folder: "
        print(f"{tool}: error: {where}{error.strerror or error}", file=sys.stderr)
    except MemoryError as error:
        print(f"{tool}: error: out of memory {error}".rstrip(), file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{tool}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return FAILURE


def _has_folder() -> bool:
    """Whether the current folder is still there; Python does not name it where it is not."""
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def _prepare_streams() -> None:
    """A program started with a closed stream, as by `>&-`, has None in its place: what goes there is dropped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
        stream = getattr(sys, name)
        # A terminal or pipe that cannot show an arrow gets a question mark instead of a UnicodeEncodeError.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def _plain_warnings(tool: str) -> Iterator[None]:
    """Shows this package's warnings as lines of the tool: a place in its Python code says nothing to its user."""
    shown = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if category is CacheWarning:
            return f"{tool}: warning: {message}\n"
        return shown(message, category, filename, lineno, line)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = shown


def say(text: str = "") -> None:
    """Prints a line. Once the reader has gone (`| head`), lines are dropped and the work goes on."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _drop_output()


def _drop_output() -> None:
    """What is still buffered goes nowhere; Python would complain about it at exit."""
    # Where stdout is no file, as in a notebook, nothing is buffered that could fail.
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Prints rows below their columns; all but the first `left` columns are aligned right."""
    if sys.stdout.isatty():
        _print_rich(columns, rows, left)
        return
    for line in plain_table(columns, rows, left=left):
        say(line)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """The table as lines of text."""
    table = [columns, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(columns))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    # Imported for terminals only: it takes longer than reading a scan.
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for index, name in enumerate(columns):
        # Where the terminal is too narrow, cells go on in the next line: no digit is lost.
        table.add_column(name, justify="left" if index < left else "right", overflow="fold", header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr; the function it gives begins the next of `total` steps."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as progress:
        task, begun = progress.add_task("starting", total=total), 0

        def step(name: str) -> None:
            nonlocal begun
            progress.update(task, description=name, completed=begun)
            begun += 1

        yield step


def check_writable(path: Path) -> Path:
    """Where a file of this name would lie, links resolved; to be asked before long work.

    Raises:
        InputError: there is no such folder, it is not writable, or something other than a file has the name.
    """
    real = Path(os.path.realpath(path))
    if not real.parent.is_dir():
        raise InputError(f"{path}: cannot be written: {real.parent} is not a folder")
    if real.exists() and not real.is_file():
        raise InputError(f"{path}: cannot be written: it exists and is not a regular file")
    if not os.access(real.parent, os.W_OK):
        raise InputError(f"{path}: cannot be written: {real.parent} is not writable")
    return real


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> int:
    """Writes a file under another name and renames it, so that no half file is seen; returns its size.

    Raises:
        InputError: it cannot be written; what was there before stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            write(file)
        written = partial.stat().st_size
        partial.replace(path)
        return written
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)


def need_torch(what: str) -> None:
    """Checks that torch is there, which `what` needs.

    Raises:
        InputError: it is not.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"{what} needs torch, which is not installed; install spconv_compiler[torch]")


def positive(text: str) -> int:
    """For argparse: a whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: a whole number, at least 1")
    return int(text)


def count(number: int, unit: str) -> str:
    """12,345 points; 1 point."""
    return f"{number:,} {unit}" + ("" if number == 1 else "s")


def size(number: int) -> str:
    """Bytes for people: 830 B, 1.3 MB."""
    if number < 1000:
        return f"{number} B"
    return f"{number / 2**10:.1f} KB" if number < 1000 * 2**10 else f"{number / 2**20:.1f} MB"
