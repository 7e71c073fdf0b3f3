"""Weight layouts: how users hold weights, and the native one that kernels are packed from.

| name | shape | used by |
|---|---|---|
| `native` | [C_out, kz, ky, kx, C_in] | spconv 2.x |
| `torch` | [C_out, C_in, kz, ky, kx] | torch.nn.Conv3d |
| `taps` | [kz·ky·kx, C_in, C_out] | TorchSparse, MinkowskiEngine |
"""

from __future__ import annotations

from typing import Any

from spconv_compiler.arrays import is_tensor
from spconv_compiler.errors import InputError

LAYOUTS = ("native", "torch", "taps")


def kernel_of(
    shape: tuple[int, ...], layout: str, kernel_size: tuple[int, int, int] | None, *, odd: bool = True
) -> tuple[int, int, int]:
    """(kz, ky, kx) of a weight.

    Args:
        shape: the weight's shape in `layout`.
        kernel_size: what the caller says, if anything; needed for `taps` unless the kernel is a cube.
        odd: whether the kernel must be odd along every axis, as a submanifold kernel is.

    Raises:
        InputError: unknown layout, wrong rank, an even kernel, or a shape that contradicts kernel_size.
    """
    if layout not in LAYOUTS:
        raise InputError(f"weight_layout is {layout!r}; accepted: {', '.join(LAYOUTS)}")
    rank = 3 if layout == "taps" else 5
    if len(shape) != rank:
        raise InputError(f"weight has shape {list(shape)}; layout {layout} has {rank} axes (layouts.py lists them)")
    if layout == "taps":
        found = _cube(shape[0]) if kernel_size is None else kernel_size
        if found[0] * found[1] * found[2] != shape[0]:
            raise InputError(f"weight has {shape[0]} taps but kernel_size is {found}")
    else:
        found = tuple(shape[1:4] if layout == "native" else shape[2:5])  # type: ignore[assignment]
        if kernel_size is not None and kernel_size != found:
            raise InputError(f"weight has kernel {found} but kernel_size is {kernel_size}")
    if not odd and min(found) < 1:
        raise InputError(f"kernel is {found}; accepted: at least one tap along every axis")
    if odd and any(size < 1 or size % 2 == 0 for size in found):
        raise InputError(f"kernel is {found}; a submanifold kernel is odd along every axis")
    return (int(found[0]), int(found[1]), int(found[2]))


def channels_of(shape: tuple[int, ...], layout: str) -> tuple[int, int]:
    """(C_in, C_out) of a weight whose layout kernel_of has accepted."""
    if layout == "native":
        return shape[4], shape[0]
    return (shape[1], shape[0]) if layout == "torch" else (shape[1], shape[2])


def to_native(weight: Any, layout: str, kernel: tuple[int, int, int]) -> Any:
    """The weight as a (possibly strided) view in the native layout."""
    if layout == "native":
        return weight
    if layout == "torch":
        axes = (0, 2, 3, 4, 1)
    else:
        weight, axes = weight.reshape(*kernel, *weight.shape[1:]), (4, 0, 1, 2, 3)
    return weight.permute(*axes) if is_tensor(weight) else weight.transpose(axes)


def _cube(taps: int) -> tuple[int, int, int]:
    side = round(taps ** (1 / 3))
    if side**3 != taps:
        raise InputError(f"weight has {taps} taps, which is no cube; give kernel_size=(kz, ky, kx)")
    return (side, side, side)
