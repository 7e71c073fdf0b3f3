"""Lowers spconv.pack_weight to a kernel that lays weights out in panels for matrix instructions.

Before:
    %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n, tile_k, …}>}
After:
    %packed = "spconv.alloc"() {name = "packed", size = taps * padded C_out * padded C_in}
    "spconv.launch"(%weight, %packed) {kernel = @kernels::@pack_weight…, group = "weights"}

Needs level stages with schedules, gives level gpu for this op. Fails on an op without a schedule or with one that
is not for a GPU. passes/gpu/mma_panels.py has the body and the layout; for "weight_images" passes/gpu/weight_images.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import PackWeightOp
from spconv_compiler.dialect.plan import alloc, launch
from spconv_compiler.dialect.types import buffer_type, element_type
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.gpu import small_channels
from spconv_compiler.passes.gpu.gemm_small_channels import WEIGHT_PARAMETERS, tap_panels
from spconv_compiler.passes.gpu.gemm_wgmma_rows import IMAGE_PARAMETERS, rewrite_images
from spconv_compiler.passes.gpu.mma_panels import Panels, pack_weight
from spconv_compiler.passes.gpu.scheduled import gpu_target, parameters
from spconv_compiler.passes.gpu.small_channels import TapPanels
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel

_LANES = 256


def rewrite_pack(op: PackWeightOp, module: ir.Module, values: dict[str, int]) -> list[ir.Value]:
    element = element_type(op.operation.results[0].type)
    panels = Panels.of(op.taps, op.c_in, op.c_out, values)
    name = f"pack_weight_{element}_t{op.taps}_{op.c_in}x{op.c_out}_{panels.name}"
    return _pack(op, module, name, panels, pack_weight(panels, _LANES))


def pack_with(op: PackWeightOp, module: ir.Module, panels: TapPanels) -> list[ir.Value]:
    """As rewrite_pack, for weights whose K is all taps."""
    element = element_type(op.operation.results[0].type)
    name = f"pack_taps_{element}_t{op.taps}_{op.c_in}x{op.c_out}_{panels.name}"
    return _pack(op, module, name, panels.panels, small_channels.pack_weight(panels, _LANES))


def _pack(op: PackWeightOp, module: ir.Module, name: str, panels: Panels, body: Callable[..., None]) -> list[ir.Value]:
    (weight,) = buffers_of(op.weight)
    element = element_type(op.operation.results[0].type)
    buffer = buffer_type(element)
    packed = alloc("packed", element, str(panels.elements))
    pack = gpu_kernel(module, name, [buffer, buffer], _LANES, body)
    blocks = -(-panels.elements // panels.run // _LANES)
    launch(pack, [weight, packed], group="weights", grid=[str(blocks)], block=_LANES)
    return [cast_to_stage([packed], op.operation.results[0].type)]


@dataclasses.dataclass(frozen=True)
class ConvertWeightToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-weight-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        gpu_target(self, module, self.target)

        def rewrite(op: PackWeightOp) -> list[ir.Value]:
            if op.schedule is not None and op.schedule[0] == "weight_images":
                return rewrite_images(op, module, parameters(self, op, "weight_images", *IMAGE_PARAMETERS))
            if op.schedule is not None and op.schedule[0] == "tap_panels":
                values = parameters(self, op, "tap_panels", *WEIGHT_PARAMETERS)
                return pack_with(op, module, tap_panels(op.taps, op.c_in, op.c_out, values))
            return rewrite_pack(op, module, parameters(self, op, "mma_panels", *Panels.PARAMETERS))

        replace_each(module, PackWeightOp.OPERATION_NAME, rewrite)
