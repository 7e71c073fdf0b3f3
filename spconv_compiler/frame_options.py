"""What the code depends on that takes a frame's coordinates in on a GPU (passes/gpu/frame_rows.py)."""

from __future__ import annotations

import dataclasses
from typing import Any

_NO_EFFECT = {"affects_code": False}


@dataclasses.dataclass(frozen=True)
class FrameOptions:
    """Every field enters the cache key unless marked otherwise.

    Attributes:
        target: resolved name. schedule: "auto".
        by_words: whether the kernel finds in memory where coordinates begin, and how many there are.
        verify, dump_dir, print_after: as in CompileOptions.
    """

    target: str
    by_words: bool = False
    schedule: str = "auto"
    verify: bool = dataclasses.field(default=True, metadata=_NO_EFFECT)
    dump_dir: str = dataclasses.field(default="", metadata=_NO_EFFECT)
    print_after: str = dataclasses.field(default="", metadata=_NO_EFFECT)

    @property
    def name(self) -> str:
        """A short name for folders and listings."""
        return "place_coords_by_words" if self.by_words else "place_coords"

    def key_parts(self) -> dict[str, Any]:
        """The fields that affect code."""
        return {"operation": self.name, "target": self.target, "schedule": self.schedule}
