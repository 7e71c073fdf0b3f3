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
        verify, dump_dir, print_after: as in CompileOptions.
    """

    target: str
    schedule: str = "auto"
    verify: bool = dataclasses.field(default=True, metadata=_NO_EFFECT)
    dump_dir: str = dataclasses.field(default="", metadata=_NO_EFFECT)
    print_after: str = dataclasses.field(default="", metadata=_NO_EFFECT)

    @property
    def name(self) -> str:
        """A short name for folders and listings."""
        return "place_coords"

    def key_parts(self) -> dict[str, Any]:
        """The fields that affect code."""
        return {"operation": "place_coords", "target": self.target, "schedule": self.schedule}
