"""Networks to run and to measure.

| module | what |
|---|---|
| `stacks` | stacks of submanifold convolutions as data, untrained; numpy is enough |
| `backbones`, `unets` | CenterPoint, SECOND, SpUNet, MinkUNet as torch modules, written once for any spconv.pytorch |
| `plain` | the layers they need in plain numpy, to compare with |
| `registry` | these by name, with seeded weights or a checkpoint's, and the voxels they take |
| `measure` | runs them and times every convolution |
| `reno`, `reno_pyramid` | a trained network: RENO, which compresses a scan; its result is a number of bits |

The names below are those of `stacks`; the other modules need torch and are imported by their own names.
"""

from __future__ import annotations

from spconv_compiler.nets.stacks import (
    DEFAULT_NET,
    NETS,
    Layer,
    LayerRun,
    Net,
    Parameters,
    get_net,
    make_parameters,
    run_net,
    standardize,
    to_dtype,
)

__all__ = [
    "DEFAULT_NET",
    "NETS",
    "Layer",
    "LayerRun",
    "Net",
    "Parameters",
    "get_net",
    "make_parameters",
    "run_net",
    "standardize",
    "to_dtype",
]
