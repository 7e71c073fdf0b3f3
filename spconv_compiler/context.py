"""Contexts in which this compiler works."""

from __future__ import annotations

from spconv_compiler import dialect
from spconv_compiler.bindings import ir


def make_context() -> ir.Context:
    """A context with the `spconv` dialect, single-threaded (Python passes and verifiers run under the GIL)."""
    context = ir.Context()
    context.enable_multithreading(False)
    dialect.register(context)
    return context
