"""Tensors and arrays as the driver sees them: dtype name, shape, address, identity; torch is never imported here.

torch is looked up in sys.modules: an argument can only be a torch tensor if the caller has imported torch.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from spconv_compiler.errors import InputError

_NUMPY_NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64"}


def torch_module() -> Any | None:
    """torch, if the caller has imported it."""
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor."""
    torch = torch_module()
    return torch is not None and isinstance(value, torch.Tensor)


@dataclasses.dataclass(frozen=True)
class Array:
    """A contiguous array in host memory.

    Attributes:
        source: the tensor or array whose memory this is; keeps it alive.
        dtype: f32, f16, bf16, i32, i64 or the foreign name.
        shape: sizes.
        pointer: address of the first element.
    """

    source: Any
    dtype: str
    shape: tuple[int, ...]
    pointer: int


def dtype_name(value: Any) -> str:
    """The dtype as this package names it; a dtype that it has no name for keeps its own."""
    name = str(value.dtype).removeprefix("torch.")
    return _NUMPY_NAMES.get(name, name)


def as_array(value: Any, what: str) -> Array:
    """A view of a torch tensor or numpy array, copied only if it is not contiguous.

    Raises:
        InputError: another type, a tensor on another device, a sparse tensor, or an array in foreign byte order.
    """
    if is_tensor(value):
        torch = torch_module()
        if value.device.type != "cpu":
            raise InputError(f"{what} is on device {value.device}; accepted: cpu")
        if value.layout != torch.strided:  # type: ignore[union-attr]
            raise InputError(f"{what} has layout {value.layout}; accepted: strided (dense) tensors")
        dense = value.detach()
        if dense.is_conj() or dense.is_neg():
            dense = dense.resolve_conj().resolve_neg()
        dense = dense if dense.is_contiguous() else dense.contiguous()
        return Array(dense, dtype_name(dense), tuple(dense.shape), dense.data_ptr())
    if isinstance(value, np.ndarray):
        if not value.dtype.isnative:
            raise InputError(f"{what} has dtype {value.dtype} in foreign byte order; accepted: native order")
        dense = value if value.flags.c_contiguous else np.ascontiguousarray(value)
        return Array(dense, dtype_name(dense), dense.shape, dense.ctypes.data)
    raise InputError(f"{what} is a {type(value).__name__}; accepted: a torch.Tensor on the cpu or a numpy.ndarray")


def empty_like_kind(value: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """An uninitialised result: a tensor where `value` is one, else an array."""
    if is_tensor(value):
        torch = torch_module()
        kinds = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
        return torch.empty(shape, dtype=getattr(torch, kinds[dtype]))  # type: ignore[union-attr]
    if dtype == "bf16":
        # numpy has no bfloat16 of its own: the input's dtype (ml_dtypes) names it, if the input has it.
        if dtype_name(value) != "bf16":
            raise InputError("out_dtype is bf16 but numpy has no bfloat16; accepted: f32, f16, or torch tensors")
        return np.empty(shape, value.dtype)
    return np.empty(shape, {"f32": np.float32, "f16": np.float16}[dtype])
