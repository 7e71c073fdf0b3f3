"""The plain numpy convolution in the place of the compiled one, for Reno(convolve=…)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spconv_compiler import reference


def plain_convolution() -> Any:
    """A function with the arguments of `subm_conv3d` that RENO uses; the last neighbour table is kept.

    Sums are the reference's; the result is rounded to the dtype of the features.
    """
    kept: list[tuple[Any, reference.Rows]] = []

    def convolve(
        coords: Any, features: Any, weight: Any, *, weight_layout: str, activation: str, target: str | None = None
    ) -> torch.Tensor:
        if not kept or kept[0][0] is not coords:
            kept[:] = [(coords, reference.kernel_map(coords))]
        native = reference.to_native_weight(weight, weight_layout, 3)
        out = reference.subm_conv3d(coords, features, native, table=kept[0][1])
        out = np.maximum(out, 0.0) if activation == "relu" else out
        return torch.from_numpy(out).to(features.dtype)

    return convolve
