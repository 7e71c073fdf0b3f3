"""Which target the modules run on: a context, so that a model itself says nothing of hardware."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from spconv_compiler import env
from spconv_compiler.targets import get_target

_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("spconv_target", default=None)


def current_target() -> str:
    """The name of the innermost `use_target`, else SPCONV_TARGET, else "auto"."""
    return _target.get() or env.TARGET.get()


@contextlib.contextmanager
def use_target(name: str) -> Iterator[None]:
    """Runs the sparse ops within the block on a target, such as "cpu" or "gfx950-sim".

    The choice is read when an op runs, not when it is traced: a compiled or exported model obeys it too. It holds for
    this thread and, as context variables do, for tasks started within.

    Raises:
        InputError: there is no such target.
    """
    get_target(name)
    token = _target.set(name)
    try:
        yield
    finally:
        _target.reset(token)
