"""Takes convolutions apart into map, compact, pack_weight, fill, gemm and apply_epilogue.

Before:
    %out = "spconv.subm_conv3d"(%coords, %features, %weight, %bias) {dilation, epilogue = #spconv.epilogue<"relu">}
After:
    %map    = "spconv.map"(%coords) {kernel_size, dilation}
    %pairs  = "spconv.compact"(%map)
    %packed = "spconv.pack_weight"(%weight)
    %init   = "spconv.fill"(%coords, %bias)
    %sum    = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">}
    %out    = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">}

A spconv.sparse_conv3d, between two coordinate sets, becomes spconv.cross_map and spconv.cross_compact in place of map
and compact, a spconv.sparse_pool3d the same and spconv.pool; a spconv.pointwise becomes spconv.apply_epilogue;
spconv.output_coords stays.

Needs level spconv, gives level stages. The epilogue op is left out when the result is the f32 sum itself. Fails never:
the op's verifier has checked all it relies on.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import (
    ApplyEpilogueOp,
    GemmOp,
    PointwiseOp,
    SparseConv3dOp,
    SparsePool3dOp,
    SubmConv3dOp,
)
from spconv_compiler.dialect.cross import cross_compact, cross_map, pool
from spconv_compiler.dialect.stages import build_map, compact, fill, pack_weight
from spconv_compiler.dialect.types import epilogue_attr
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.base import Pass, replace_each


def rewrite_subm_conv(op: SubmConv3dOp) -> list[ir.Value]:
    return _convolve(op, compact(build_map(op.coords, op.kernel_size, op.dilation)), op.coords)


def rewrite_sparse_conv(op: SparseConv3dOp) -> list[ir.Value]:
    fine, coarse = (op.out_coords, op.coords) if op.transposed else (op.coords, op.out_coords)
    map_ = cross_map(fine, coarse, op.kernel_size, op.stride, op.padding, op.dilation)
    return _convolve(op, cross_compact(map_, transposed=op.transposed), op.out_coords)


def rewrite_sparse_pool(op: SparsePool3dOp) -> list[ir.Value]:
    map_ = cross_map(op.coords, op.out_coords, op.kernel_size, op.stride, op.padding, op.dilation)
    return [pool(cross_compact(map_, transposed=False), op.features, op.mode)]


def _convolve(op: SubmConv3dOp | SparseConv3dOp, pairs: ir.Value, out_coords: ir.Value) -> list[ir.Value]:
    """The ops behind the map: a convolution over `pairs` whose rows belong to `out_coords`."""
    result = op.operation.results[0]
    init = fill(out_coords, ir.RankedTensorType(result.type).get_dim_size(1), op.bias)
    operands = [pairs, op.features, pack_weight(op.weight), init]
    total = GemmOp.create([init.type], operands, {"epilogue": epilogue_attr("none")}).results[0]
    if op.epilogue == Epilogue() and result.type == init.type:
        return [total]
    return list(ApplyEpilogueOp.create([result.type], [total], {"epilogue": op.attribute("epilogue")}).results)


def rewrite_pointwise(op: PointwiseOp) -> list[ir.Value]:
    attributes = {"epilogue": op.attribute("epilogue")}
    result = op.operation.results[0]
    return list(ApplyEpilogueOp.create([result.type], list(op.operation.operands), attributes).results)


@dataclasses.dataclass(frozen=True)
class ConvertSpconvToStages(Pass):
    """See the module."""

    name: ClassVar[str] = "convert-spconv-to-stages"
    needs: ClassVar[str] = "spconv"
    gives: ClassVar[str] = "stages"

    def run(self, module: ir.Module) -> None:
        replace_each(module, SubmConv3dOp.OPERATION_NAME, rewrite_subm_conv)
        replace_each(module, SparseConv3dOp.OPERATION_NAME, rewrite_sparse_conv)
        replace_each(module, SparsePool3dOp.OPERATION_NAME, rewrite_sparse_pool)
        replace_each(module, PointwiseOp.OPERATION_NAME, rewrite_pointwise)
