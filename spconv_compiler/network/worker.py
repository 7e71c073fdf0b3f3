"""A process that compiles kernels for this one: options in, files of the artifact out, through pipes.

A plain process and not multiprocessing: that would import the user's main module once more.
"""

from __future__ import annotations

import pathlib
import pickle
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, BinaryIO

from spconv_compiler.errors import CompileError, SpconvError

_PACKAGE = pathlib.Path(__file__).parent.parent.parent
_START = "import sys; sys.path.insert(0, {path!r}); from spconv_compiler.network.worker import main; main()"


class Worker:
    """One process, for one thread at a time; as a context manager it ends with the block."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _START.format(path=str(_PACKAGE))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def compile(self, options: Any) -> Mapping[str, bytes]:
        """The files of the artifact.

        Raises:
            SpconvError: what the compiler raised there.
            CompileError: the process died.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump(options, self._process.stdin)
            self._process.stdin.flush()
            found = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise CompileError(f"a process that compiles kernels died over {options.name}: {error}") from error
        if isinstance(found, BaseException):
            raise found
        files: Mapping[str, bytes] = found
        return files


def main() -> None:
    """Compiles what comes in until the other side closes the pipe."""
    from spconv_compiler.compiler import compile_options

    # What libraries print must not get between the answers.
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while (options := _next(given)) is not None:
        try:
            answer: Any = dict(compile_options(options).files)
        except SpconvError as error:
            answer = _portable(error)
        pickle.dump(answer, answers)
        answers.flush()


def _next(given: BinaryIO) -> Any:
    try:
        return pickle.load(given)
    except EOFError:
        return None


def _portable(error: SpconvError) -> SpconvError:
    """The error itself, or its text where it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # pickling runs the error's own code
        return CompileError(str(error))
    return error
