"""What the stage-lowering passes share: the kernel module, casts between stage values and buffers, launches.

A stage value (coords, a tensor, a map, pairs, packed weights) is carried between these passes as a
builtin.unrealized_conversion_cast of the buffers that hold it; convert-host-to-plan resolves the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spconv_compiler.bindings import gpu, ir
from spconv_compiler.dialect.types import buffer_type, element_type, type_name
from spconv_compiler.passes.kernel_builder import V, i32

CAST = "builtin.unrealized_conversion_cast"
KERNELS = "kernels"


def cast_to_stage(buffers: Sequence[ir.Value], type_: ir.Type, **attributes: ir.Attribute) -> ir.Value:
    """A stage value that stands for `buffers`; `attributes` stay on the cast for the passes to come."""
    operands = [getattr(buffer, "value", buffer) for buffer in buffers]
    return ir.Operation.create(CAST, results=[type_], operands=operands, attributes=attributes).results[0]


def buffers_of(value: ir.Value) -> list[ir.Value]:
    """The buffers behind a stage value; for a function argument a cast is made at the top of its block."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return [_argument_buffer(value, owner)]
    operation = owner.operation
    if operation.name != CAST:
        raise ValueError(f"the result of {operation.name} has not been lowered to buffers yet")
    return list(operation.operands)


def rows_of(value: ir.Value) -> str:
    """The plan's symbol for the rows of a lowered value, or for the output rows of pairs: what its cast notes."""
    return noted(value, "rows", "rows")


def noted(value: ir.Value, name: str, otherwise: str) -> str:
    """A text that the cast of a lowered value notes under `name`, or `otherwise` where it notes none."""
    attributes = None if isinstance(value.owner, ir.Block) else value.owner.operation.attributes
    return ir.StringAttr(attributes[name]).value if attributes is not None and name in attributes else otherwise


def _argument_buffer(value: ir.Value, block: ir.Block) -> ir.Value:
    for use in value.uses:
        user = use.owner.operation
        if user.name == CAST and type_name(user.results[0].type) == "spconv.buffer":
            return user.results[0]
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
        return ir.Operation.create(CAST, results=[stored_as(value.type)], operands=[value]).results[0]


def stored_as(type_: ir.Type) -> ir.Type:
    """The buffer that holds a stage value which users pass in: coords as i32, tensors by element."""
    name = type_name(type_)
    if name == "spconv.coords":
        return buffer_type(i32())
    if name == "spconv.packed":
        return buffer_type(element_type(type_))
    return buffer_type(ir.RankedTensorType(type_).element_type)


def kernel_module(module: ir.Module, *, on_gpu: bool) -> ir.Block:
    """The body of the nested module @kernels, made at the end of `module` on first use."""
    for op in module.body.operations:
        if op.operation.name in ("gpu.module", "builtin.module"):
            return op.operation.regions[0].blocks[0]
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        if on_gpu:
            module.operation.attributes["gpu.container_module"] = ir.UnitAttr.get()
            made = gpu.GPUModuleOp(KERNELS)
            if not len(made.regions[0].blocks):
                made.regions[0].blocks.append()
            return made.regions[0].blocks[0]
        nested = ir.Operation.create(
            "builtin.module", attributes={"sym_name": ir.StringAttr.get(KERNELS)}, regions=1
        )
        nested.regions[0].blocks.append()
        return nested.regions[0].blocks[0]


def gpu_kernel(
    module: ir.Module,
    name: str,
    arguments: Sequence[ir.Type],
    block_size: int,
    body: Callable[..., None],
    *,
    workgroup: Sequence[ir.Type] = (),
    attributes: Mapping[str, ir.Attribute] | None = None,
) -> ir.Attribute:
    """Defines the gpu.func `name` once and returns its symbol @kernels::@name.

    Args:
        arguments: buffer types and i32/i64. Buffers must not overlap.
        block_size: lanes of a workgroup.
        body: called with one V per argument, then one per workgroup memref; builds everything but the return.
        workgroup: memref types of LDS.
        attributes: more attributes of the function.
    """
    block = kernel_module(module, on_gpu=True)
    symbol = ir.Attribute.parse(f"@{KERNELS}::@{name}")
    if _has_symbol(block, name):
        return symbol
    with ir.InsertionPoint(block):
        function_type = ir.TypeAttr.get(ir.FunctionType.get(list(arguments), []))
        kernel = ir.Operation.create(
            "gpu.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "function_type": function_type,
                "kernel": ir.UnitAttr.get(),
                "known_block_size": ir.DenseI32ArrayAttr.get([block_size, 1, 1]),
                **(attributes or {}),
                "workgroup_attributions": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(workgroup)),
                "workgroup_attrib_attrs": ir.ArrayAttr.get([_whole_runs()] * len(workgroup)),
            },
        )
        types = [*arguments, *workgroup]
        entry = kernel.regions[0].blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
        with ir.InsertionPoint(entry):
            body(*[V(argument) for argument in entry.arguments])
            gpu.ReturnOp([])
    return symbol


def _whole_runs() -> ir.Attribute:
    """What is written and read in runs of 16 bytes (gpu/local.py) starts at one, whatever lies before it."""
    return ir.Attribute.parse("{llvm.align = 16 : i64}")


def _has_symbol(block: ir.Block, name: str) -> bool:
    return any(
        "sym_name" in op.operation.attributes
        and ir.StringAttr(op.operation.attributes["sym_name"]).value == name
        for op in block.operations
    )
