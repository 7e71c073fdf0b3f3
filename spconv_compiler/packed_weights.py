"""Packed weights, kept as long as the weight lives and does not change where it is used."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

from spconv_compiler.arrays import Array, as_array
from spconv_compiler.geometry import Triple
from spconv_compiler.layouts import to_native
from spconv_compiler.runtime.host_functions import HostFunctions
from spconv_compiler.tensor_cache import TensorCache


def packed_weight(
    cache: TensorCache[Any],
    kernel: Any,
    signature: Hashable,
    pairs: Any,
    weight: Any,
    weights: Array,
    layout: str,
    kernel_size: Triple,
) -> Any:
    """The weight as a kernel reads it.

    Args:
        signature: of the kernels that pack it.
        pairs: what the kernel will run over: a KernelMap, a MapPairs or a DeviceMap.
        weight, weights: the tensor or array the user passed, and its contiguous contents; in `layout`.
    """

    def pack() -> Any:
        return kernel.pack(as_array(to_native(weight, layout, kernel_size), "weight", on_gpu=True))

    extra = (signature, layout)
    if not isinstance(kernel, HostFunctions):
        return cache.get(weight, weights, extra, kernel.checksum, pack)
    used = pairs.used_taps

    def unchanged(array: Array, known: Any) -> bool:
        return kernel.weight_unchanged(array, known, used)

    return cache.get(weight, weights, extra, functools.partial(kernel.weight_print, layout=layout), pack, unchanged)
