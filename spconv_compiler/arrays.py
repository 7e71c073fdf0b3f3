"""Tensors and arrays as the driver sees them: dtype name, shape, address, identity; torch is never imported here.

torch is looked up in sys.modules: an argument can only be a torch tensor if the caller has imported torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.runtime.huge_pages import LEAST, prefer_huge_pages

_NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64"}
ITEM_BYTES = {"f32": 4, "i32": 4, "i64": 8, "bf16": 2, "f16": 2}


_torch: Any | None = None


def torch_module() -> Any | None:
    """torch, if the caller has imported it."""
    global _torch
    if _torch is None:
        found = sys.modules.get("torch")
        # Another thread may be in the middle of importing it, and then nobody holds a tensor yet.
        _torch = found if hasattr(found, "Tensor") else None
    return _torch


def lasting_tensors() -> contextlib.AbstractContextManager[Any]:
    """A block whose new tensors serve callers in every mode of torch, though this one may be in inference mode."""
    torch = torch_module()
    if torch is None or not torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    mode: contextlib.AbstractContextManager[Any] = torch.inference_mode(False)
    return mode


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor."""
    torch = torch_module()
    return torch is not None and isinstance(value, torch.Tensor)


class Array(NamedTuple):
    """A contiguous, aligned array in host memory, or a torch tensor on a GPU.

    Attributes:
        source: the tensor or array whose memory this is; keeps it alive.
        dtype: f32, f16, bf16, i32, i64 or the foreign name.
        shape: sizes.
        pointer: address of the first element.
        device: number of the GPU, or None in host memory.
    """

    source: Any
    dtype: str
    shape: tuple[int, ...]
    pointer: int
    device: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


# In half the time of Array(…), which small calls feel.
_array = tuple.__new__


def bytes_at(pointer: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """Host memory as an array that shares it; it must outlive the array."""
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(pointer)
    found: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    return found


def dtype_name(value: Any) -> str:
    """The dtype as this package names it; a dtype that it has no name for keeps its own."""
    return _dtype_name(value.dtype)


@functools.lru_cache(maxsize=64)
def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return _NAMES.get(name, name)


def as_array(value: Any, what: str, *, on_gpu: bool = False) -> Array:
    """A view of a torch tensor or numpy array, copied only if it is not contiguous and aligned.

    Args:
        on_gpu: whether tensors on a GPU are accepted too.

    Raises:
        InputError: another type, a tensor on another device or without memory, a sparse or nested tensor, or an
            array in foreign byte order.
    """
    torch = _torch or torch_module()
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(value, what, on_gpu)
    if isinstance(value, np.ndarray):
        if not value.dtype.isnative:
            raise InputError(f"{what} has dtype {value.dtype} in foreign byte order; accepted: native order")
        flags = value.flags
        if not (flags.c_contiguous and flags.aligned):
            value = np.require(value, requirements=("C", "A"))
        return Array(value, _dtype_name(value.dtype), value.shape, address_of(value))
    raise InputError(f"{what} is a {type(value).__name__}; accepted: a torch.Tensor on the cpu or a numpy.ndarray")


def address_of(array: Any) -> int:
    """The address of a contiguous numpy array's first element."""
    try:
        # Twice as fast as array.ctypes.data, which small calls feel.
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, empty, or a dtype that buffers do not know
        return int(array.ctypes.data)


def _of_tensor(value: Any, what: str, on_gpu: bool) -> Array:
    on_cpu = value.is_cpu
    if not on_cpu and not (on_gpu and value.is_cuda):
        raise InputError(f"{what} is on device {value.device}; accepted: cpu")
    given = value
    try:
        if not value.is_contiguous() or value.is_neg():
            value = value.detach().resolve_neg().contiguous()
        pointer, shape = value.data_ptr(), value.shape
        if pointer == 0 and value.numel() > 0:
            raise RuntimeError
    except RuntimeError:
        raise InputError(_why_refused(given, what)) from None
    if pointer % 8 and pointer % value.element_size():
        value = value.detach().clone()
        pointer = value.data_ptr()
    return _array(Array, (value, _dtype_name(value.dtype), shape, pointer, None if on_cpu else value.get_device()))


def _why_refused(value: Any, what: str) -> str:
    torch: Any = _torch
    if value.is_nested or value.layout != torch.strided:
        kind = "nested" if value.is_nested else value.layout
        return f"{what} is a {kind} tensor; accepted: strided (dense) tensors"
    return f"{what} has no memory (a traced, transformed or freed tensor); accepted: tensors with data"


def gpu_runtime() -> str:
    """Whose driver reaches torch's GPU tensors: "hip" or "cuda", as GpuTarget.runtime has it."""
    torch: Any = _torch
    return "hip" if torch.version.hip else "cuda"


def gpu_target_name() -> str:
    """The target whose code runs where torch's GPU tensors lie."""
    return {"hip": "gfx950", "cuda": "sm_90"}[gpu_runtime()]


def empty_like_kind(value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """An uninitialised result where `value` is: its source is a tensor if that is one, else a numpy array.

    Raises:
        LaunchError: there is not enough memory.
        InputError: the result is bf16 and numpy has no name for that.
    """
    tensor = is_tensor(value)
    kind = None if tensor else _numpy_dtype(value, dtype)
    try:
        made: Any = _empty_tensor(value, shape, dtype) if tensor else np.empty(shape, kind)
    except (MemoryError, RuntimeError, ValueError) as error:
        raise LaunchError(f"out of memory: a result of shape {list(shape)} in {dtype} cannot be allocated") from error
    if not tensor:
        return Array(made, dtype, shape, address_of(made))
    pointer = made.data_ptr()
    if not made.is_cpu:
        return _array(Array, (made, dtype, shape, pointer, made.get_device()))
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if nbytes >= LEAST:
        prefer_huge_pages(pointer, nbytes)
    return _array(Array, (made, dtype, shape, pointer, None))


def _empty_tensor(value: Any, shape: tuple[int, ...], dtype: str) -> Any:
    torch: Any = _torch
    # The quickest way; of a subclass it would make another one.
    if value.is_cpu and _dtype_name(value.dtype) == dtype and type(value) in (torch.Tensor, torch.nn.Parameter):
        return value.new_empty(shape)
    kind = torch.float32 if dtype == "f32" else torch.float16 if dtype == "f16" else torch.bfloat16
    # The device is said: torch.set_default_device must not decide where kernels write.
    return value.new_empty(shape, dtype=kind) if value.is_cuda else torch.empty(shape, dtype=kind, device="cpu")


def _numpy_dtype(value: Any, dtype: str) -> Any:
    if dtype != "bf16":
        return {"f32": np.float32, "f16": np.float16}[dtype]
    # numpy has no bfloat16 of its own: the input's dtype (ml_dtypes) names it, if the input has it.
    if dtype_name(value) == "bf16":
        return value.dtype
    raise InputError("out_dtype is bf16 but numpy has no bfloat16; accepted: f32, f16, or torch tensors")
