"""An order of rows that one map has found, for the next map over the same rows.

`build_maps` says while it builds which coordinates are read; a sort that finds them noted starts from that order and
notices that keys ascend. Any permutation of the rows is a right start, so a note can be useless but not wrong.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from spconv_compiler.runtime.cpu import CpuBuffer


@dataclasses.dataclass
class KnownOrder:
    """The rows of one coordinate set as they ascend in (batch, z, y, x), int32 [N], once a map has sorted them."""

    rows: CpuBuffer | None = None


_current: contextvars.ContextVar[KnownOrder | None] = contextvars.ContextVar("spconv_known_order", default=None)


@contextlib.contextmanager
def reading(known: KnownOrder | None) -> Iterator[None]:
    """Maps that are built inside read the coordinates that `known` belongs to; None: nothing is known of them."""
    token = _current.set(known)
    try:
        yield
    finally:
        _current.reset(token)


def known_address(rows: int) -> int:
    """The address of a known order of as many rows, or 0."""
    known = _current.get()
    return 0 if known is None or known.rows is None or known.rows.count != rows else known.rows.pointer


def note(rows: CpuBuffer) -> None:
    """Keeps the order that a sort has found, if anybody asks for it."""
    known = _current.get()
    if known is not None:
        known.rows = rows
