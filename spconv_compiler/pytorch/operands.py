"""What a layer reads, checked: channels, devices, dtypes; and torch.autocast.

Under autocast of the features' device, features, weight and bias are cast to autocast's dtype, bf16 or f16, in training
and in eval alike, and so is the result. (spconv casts to f16 in training whatever was asked for, and not at all in
eval.) Sums are taken in f32 in any case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from spconv_compiler.errors import InputError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# As torch calls them: "cuda" is an AMD GPU too.
_DEVICES = ("cpu", "cuda")
# Parameters cast for autocast, so that what is packed from them is found again.
_casts: Any = WeakIdKeyDictionary()


def check_operands(layer: Any, x: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """(features, weight, bias) as the ops take them.

    Args:
        layer: a SparseConvolution; x: a SparseConvTensor.

    Raises:
        InputError: channels, devices or dtypes do not fit; the message names the layer.
    """
    features, held = x.features, layer._parameters
    # nn.Module finds what is no plain attribute in a microsecond; a parametrized weight is no parameter.
    weight = held["weight"] if "weight" in held else layer.weight
    bias = held["bias"] if "bias" in held else layer.bias
    if features.shape[1] != layer.in_channels:
        found = f"features have {features.shape[1]} channels"
        raise InputError(f"{layer.describe()}: {found}; accepted: in_channels={layer.in_channels}")
    # Asking for names of devices takes longer than the rest of this.
    on_cpu = features.is_cpu and weight.is_cpu and x.indices.is_cpu
    if not on_cpu:
        _check_devices(layer, features, weight, x.indices)
    kind = "cpu" if on_cpu else features.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        if features.dtype in _DTYPES:
            features, weight = features.to(dtype), _cast(weight, dtype)
            bias = None if bias is None else _cast(bias, dtype)
    if features.dtype not in _DTYPES or weight.dtype != features.dtype:
        raise InputError(
            f"{layer.describe()}: features are {features.dtype} and the weight is {weight.dtype}; accepted: both "
            "float32, both bfloat16 or both float16 (convert one of them, or run under torch.autocast)"
        )
    return features, weight, bias


def _check_devices(layer: Any, features: Tensor, weight: Tensor, indices: Tensor) -> None:
    device = features.device
    if weight.device != device or indices.device != device:
        raise InputError(
            f"{layer.describe()}: features are on {device}, indices on {indices.device} and the weight on "
            f"{weight.device}; accepted: one device for all (move the model or the SparseConvTensor's tensors)"
        )
    _check_kind(layer, device)


def _check_kind(layer: Any, device: torch.device) -> None:
    if device.type not in _DEVICES:
        raise InputError(f"{layer.describe()}: its tensors are on {device}; accepted: {' or '.join(_DEVICES)}")


def _cast(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    if parameter.dtype == dtype:
        return parameter
    made = parameter.to(dtype)
    if torch.compiler.is_compiling() or made.requires_grad:
        return made
    kept = _casts.setdefault(parameter, {})
    if dtype not in kept or kept[dtype].shape != made.shape or not torch.equal(kept[dtype], made):
        kept[dtype] = made
    cast: Tensor = kept[dtype]
    return cast


def count_rows(counter: Tensor, rows: int) -> None:
    """Raises the counter, int32 [1], to `rows` if it is less."""
    with torch.no_grad():
        counter.copy_(torch.maximum(counter, torch.full_like(counter, rows)))


def check_pool_input(layer: Any, x: Any) -> None:
    """As check_operands, for a layer without parameters."""
    if x.features.dtype not in _DTYPES:
        accepted = "float32, bfloat16 or float16"
        raise InputError(f"{layer.describe()}: features are {x.features.dtype}; accepted: {accepted}")
    if x.indices.device != x.features.device:
        places = f"features are on {x.features.device} but indices on {x.indices.device}"
        raise InputError(f"{layer.describe()}: {places}; accepted: one device for both")
    _check_kind(layer, x.features.device)
