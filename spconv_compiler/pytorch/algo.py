"""`ConvAlgo`, for signatures of spconv: the value is accepted and has no effect."""

from __future__ import annotations

import enum


class ConvAlgo(enum.Enum):
    """How spconv would compute a layer.

    Here the compiler chooses a schedule per target, channels and kernel, and layers may share maps whatever their algo.
    """

    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2
