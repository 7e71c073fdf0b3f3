"""What happens to a finished sum: an optional residual is added, then an activation applied, all in f32."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import Any

from spconv_compiler.errors import InputError

ACTIVATIONS = ("none", "relu", "leaky_relu", "gelu", "silu")
DEFAULT_SLOPE = 0.01


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """An activation and its parameter.

    Attributes:
        activation: one of ACTIVATIONS; "gelu" is the exact one, x·Φ(x), and "silu" is x·σ(x).
        negative_slope: what leaky_relu multiplies numbers below zero by, as f32; 0 for the others.

    Raises:
        InputError: an unknown activation; a slope that is not a finite number.
    """

    activation: str = "none"
    negative_slope: float = 0.0

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation is {self.activation!r}; accepted: {', '.join(ACTIVATIONS)}")
        if not math.isfinite(self.negative_slope):
            raise InputError(f"negative_slope is {self.negative_slope}; accepted: a finite number")

    @property
    def name(self) -> str:
        """Distinct for distinct epilogues, and fit for the name of a kernel."""
        if self.activation != "leaky_relu":
            return self.activation
        return f"leaky_relu_{struct.pack('>f', self.negative_slope).hex()}"


def epilogue_of(activation: Any, negative_slope: Any = DEFAULT_SLOPE) -> Epilogue:
    """The epilogue that arguments ask for; the slope counts for leaky_relu only and is rounded to f32.

    Raises:
        InputError: an unknown activation; a slope that is not a number, or too large for f32.
    """
    if activation != "leaky_relu":
        return Epilogue(activation)
    try:
        (slope,) = struct.unpack("<f", struct.pack("<f", negative_slope))
    except (struct.error, OverflowError):
        raise InputError(f"negative_slope is {negative_slope!r}; accepted: a number that f32 can hold") from None
    return Epilogue(activation, slope)
