"""What a plan demands of its sizes and grids: kernels with 32-bit offsets state how far they reach, the driver checks.

The demands stand on the plan's function as
    spconv.requires = [{message = "bytes of the kernel map", size = affine_map<()[rows, cells, threads] -> (…)>,
                        limit = 4294967295 : i64}, …]
"""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.plan import size_map
from spconv_compiler.passes.base import enclosing_function
from spconv_compiler.passes.kernel_builder import i64
from spconv_compiler.targets import GpuTarget

ATTRIBUTE = "spconv.requires"


def on_one_chiplet(groups: str, target: GpuTarget) -> str:
    """Workgroups along the first axis of a grid, so many more that those with equal number there share a chiplet.

    What they write side by side in a cache line then meets in one cache.
    """
    return f"(({groups}) ceildiv {target.chiplets}) * {target.chiplets}"


def require(op: ir.OpView, message: str, size: str, limit: int) -> None:
    """Adds a demand to the function around `op`: `size`, a text as for plan.size_map, stays ≤ limit.

    message: what the size counts; the driver's error starts with it.
    """
    function = enclosing_function(op).operation
    demand = ir.DictAttr.get(
        {
            "message": ir.StringAttr.get(message),
            "size": size_map(size),
            "limit": ir.IntegerAttr.get(i64(), limit),
        }
    )
    old = list(ir.ArrayAttr(function.attributes[ATTRIBUTE])) if ATTRIBUTE in function.attributes else []
    if demand not in old:
        function.attributes[ATTRIBUTE] = ir.ArrayAttr.get([*old, demand])
