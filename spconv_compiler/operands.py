"""Checks of features, bias and residual that several ops share."""

from __future__ import annotations

from typing import Any

from spconv_compiler.arrays import Array, as_array, is_tensor
from spconv_compiler.errors import InputError
from spconv_compiler.options import DTYPES


def check_features(features: Any, rows: int, of: str) -> Array:
    """Features [rows, C] of f32, bf16 or f16; `of` names the coordinates that their rows belong to.

    Raises:
        InputError: another kind, rank, dtype or number of rows.
    """
    array = as_array(features, "features", on_gpu=True)
    if len(array.shape) != 2:
        raise InputError(f"features have shape {list(array.shape)}; accepted: [N, C_in]")
    if array.shape[0] != rows:
        raise InputError(f"features have {array.shape[0]} rows but {of} have {rows}; accepted: as many of each")
    if array.dtype not in DTYPES:
        raise InputError(f"features have dtype {array.dtype}; accepted: float32, bfloat16, float16")
    return array


def check_bias(bias: Any, c_out: int) -> Array:
    """A bias [c_out] as f32, which is what it is added in.

    Raises:
        InputError: another kind, shape or dtype.
    """
    array = as_array(bias, "bias", on_gpu=True)
    if array.shape != (c_out,):
        raise InputError(f"bias has shape {list(array.shape)}; accepted: [{c_out}], one for each output channel")
    if array.dtype not in DTYPES:
        raise InputError(f"bias has dtype {array.dtype}; accepted: float32, bfloat16, float16")
    if array.dtype == "f32":
        return array
    source = array.source
    wide = source.detach().float() if is_tensor(source) else source.astype("float32")
    return as_array(wide, "bias", on_gpu=True)


def check_residual(residual: Any, shape: tuple[int, int], dtype: str) -> Array:
    """A residual of the result's shape and dtype.

    Raises:
        InputError: another kind, shape or dtype.
    """
    array = as_array(residual, "residual", on_gpu=True)
    if array.shape != shape:
        raise InputError(f"residual has shape {list(array.shape)}; accepted: {list(shape)}, that of the result")
    if array.dtype != dtype:
        raise InputError(f"residual has dtype {array.dtype}; accepted: {dtype}, that of the result")
    return array


def check_place(device: int | None, **arrays: Array | None) -> None:
    """Checks that all arrays lie where coordinates do: on the GPU with that number, or in host memory (None).

    Raises:
        InputError: one lies elsewhere.
    """
    for name, array in arrays.items():
        if array is not None and array.device != device:
            places = ["the cpu" if place is None else f"GPU {place}" for place in (device, array.device)]
            raise InputError(f"coords are on {places[0]} but {name} is on {places[1]}; accepted: one place for all")
