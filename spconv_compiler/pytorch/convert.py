"""Weights of other libraries, as the modules here keep them: [C_out, *kernel, C_in].

| from | shape there | order of taps there |
|---|---|---|
| torch `Conv1-3d` | [C_out, C_in, *kernel] | row-major |
| torch `ConvTranspose1-3d` | [C_in, C_out, *kernel] | row-major |
| spconv 1.x, mmcv | [*kernel, C_in, C_out] | row-major |
| TorchSparse 2.x | [taps, C_in, C_out], [C_in, C_out] for one tap | odd number of taps: first axis fastest, else last |
| MinkowskiEngine | as TorchSparse | first axis fastest |

An axis is a column of the coordinates after the batch: columns are taken to stand in the same order on both sides, as
when (batch, x, y, z) of TorchSparse is used as it is. Where they are reversed here, to (batch, z, y, x), say so.

A layer of one tap (with stride 1, or submanifold) reads its weight's memory as [C_in, C_out], as spconv does.
`to_layer` makes that memory of a weight that means what it says; `convert_state_dict` uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from spconv_compiler.errors import InputError
from spconv_compiler.pytorch.conv import SparseConvolution

SOURCES = ("torch", "spconv1", "torchsparse", "minkowski")


def from_torch(weight: Tensor, *, transposed: bool = False) -> Tensor:
    """A weight of torch.nn.Conv1-3d, or of ConvTranspose1-3d, as [C_out, *kernel, C_in]."""
    if weight.dim() < 3:
        raise InputError(f"weight has shape {list(weight.shape)}; accepted: [C_out, C_in, *kernel]")
    c_in, c_out = (0, 1) if transposed else (1, 0)
    return weight.permute(c_out, *range(2, weight.dim()), c_in).contiguous()


def from_spconv1(weight: Tensor) -> Tensor:
    """A weight of spconv 1.x or mmcv, [*kernel, C_in, C_out], as [C_out, *kernel, C_in]."""
    if weight.dim() < 3:
        raise InputError(f"weight has shape {list(weight.shape)}; accepted: [*kernel, C_in, C_out]")
    return weight.permute(-1, *range(weight.dim() - 2), -2).contiguous()


def from_torchsparse(kernel: Tensor, kernel_size: Sequence[int], *, reverse_axes: bool = False) -> Tensor:
    """A kernel of torchsparse.nn.Conv3d, [taps, C_in, C_out], as [C_out, *kernel, C_in].

    Args:
        kernel_size: of the result, in the order of the coordinate columns here.
        reverse_axes: whether the coordinate columns here are in the reverse order of those there.
    """
    first_fastest = math.prod(kernel_size) % 2 == 1
    return _from_taps(kernel, kernel_size, first_fastest=first_fastest, reverse_axes=reverse_axes)


def from_minkowski(kernel: Tensor, kernel_size: Sequence[int], *, reverse_axes: bool = False) -> Tensor:
    """A kernel of MinkowskiConvolution, [taps, C_in, C_out], as [C_out, *kernel, C_in].

    Args: as from_torchsparse. Coordinates there stay on the input's lattice: divide those of a level with tensor
    stride s by s.
    """
    return _from_taps(kernel, kernel_size, first_fastest=True, reverse_axes=reverse_axes)


def _from_taps(kernel: Tensor, kernel_size: Sequence[int], *, first_fastest: bool, reverse_axes: bool) -> Tensor:
    taps = math.prod(kernel_size)
    if kernel.dim() == 2 and taps == 1:
        kernel = kernel[None]
    if kernel.dim() != 3 or kernel.shape[0] != taps:
        raise InputError(f"kernel has shape {list(kernel.shape)}; accepted: [{taps}, C_in, C_out]")
    there = list(kernel_size)[::-1] if reverse_axes else list(kernel_size)
    axes = list(range(len(there)))
    # Unfolded, the slowest axis comes first.
    order = axes[::-1] if first_fastest else axes
    unfolded = kernel.reshape(*(there[axis] for axis in order), *kernel.shape[1:])
    wanted = [order.index(axis) for axis in axes]
    wanted = wanted[::-1] if reverse_axes else wanted
    return unfolded.permute(-1, *wanted, -2).contiguous()


def to_layer(layer: SparseConvolution, weight: Tensor) -> Tensor:
    """What `layer.weight` has to hold for the layer to apply `weight`, [C_out, *kernel, C_in].

    Raises:
        InputError: the shape is not that of the layer's weight.
    """
    if weight.shape != layer.weight.shape:
        raise InputError(
            f"{layer.describe()}: a weight has shape {list(weight.shape)}; accepted: {list(layer.weight.shape)}"
        )
    if not layer.conv1x1:
        return weight
    return weight.reshape(layer.out_channels, layer.in_channels).T.contiguous().view(weight.shape)


def from_spconv21(layer: SparseConvolution, weight: Tensor) -> Tensor:
    """The weight of a layer of one tap from a checkpoint of spconv 2.1, which reads it as [C_out, C_in]."""
    return to_layer(layer, weight)


def convert_state_dict(
    model: nn.Module, state_dict: Mapping[str, Tensor], source: str, *, reverse_axes: bool = False
) -> dict[str, Tensor]:
    """A state_dict of the same network in another library, for `model.load_state_dict(…, strict=True)`.

    Entries of sparse convolutions are converted, wherever modules have the same names; `kernel` becomes `weight`, and
    MinkowskiEngine's `….bn.….` and its bias [1, C] become torch's. All else is passed on.

    Args:
        source: "torch", "spconv1", "torchsparse" or "minkowski".
        reverse_axes: see from_torchsparse.

    Raises:
        InputError: source is unknown, or a weight does not fit its layer.
    """
    if source not in SOURCES:
        raise InputError(f"source is {source!r}; accepted: {', '.join(SOURCES)}")
    modules = dict(model.named_modules())
    made: dict[str, Tensor] = {}
    for key, value in state_dict.items():
        owner, _, name = key.rpartition(".")
        layer = modules.get(owner)
        if isinstance(layer, SparseConvolution):
            if name in ("weight", "kernel"):
                converted = to_layer(layer, _converter(layer, source, reverse_axes)(value))
                made[f"{owner}.weight" if owner else "weight"] = converted
                continue
            if name == "bias":
                value = value.reshape(-1)
        elif source == "minkowski" and layer is None:
            parent, _, last = owner.rpartition(".")
            key = f"{parent}.{name}" if last == "bn" and parent in modules else key
        made[key] = value
    return made


def _converter(layer: SparseConvolution, source: str, reverse_axes: bool) -> Callable[[Tensor], Tensor]:
    if source == "torch":
        return lambda weight: from_torch(weight, transposed=layer.transposed or layer.inverse)
    if source == "spconv1":
        return from_spconv1
    from_taps = from_torchsparse if source == "torchsparse" else from_minkowski
    return lambda kernel: from_taps(kernel, layer.kernel_size, reverse_axes=reverse_axes)


__all__ = [
    "SOURCES",
    "convert_state_dict",
    "from_minkowski",
    "from_spconv1",
    "from_spconv21",
    "from_torch",
    "from_torchsparse",
    "to_layer",
]
