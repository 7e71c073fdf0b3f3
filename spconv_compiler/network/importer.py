"""From a torch.export program to a function of level spconv, with the user's lines as locations.

    func.func @network(%coords: !spconv.coords<64>, %features: tensor<?x5xf32>) -> tensor<?x128xf32>

Nodes fall into three parts. What depends on inputs and parameters alone stays in torch (the head), and so does all that
needs a result of the sparse part and is needed by no sparse op (the tail: to_dense and what follows). In between every
op must be one of import_ops.py. Values of parameters alone are computed here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree

from spconv_compiler.bindings import func, ir
from spconv_compiler.context import make_context
from spconv_compiler.dialect.network import parameter
from spconv_compiler.dialect.types import coords_type, element_named
from spconv_compiler.errors import InputError
from spconv_compiler.network.boundary import cut
from spconv_compiler.network.export import check_any_rows
from spconv_compiler.network.graph import OWN, Graph, Ir
from spconv_compiler.network.import_ops import MAKE_COORDS, POINTWISE, SPARSE, Left, arguments, supported
from spconv_compiler.network.lines import location_of, refuse
from spconv_compiler.network.rows import RowGroups

_ELEMENTS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
SHAPE, BATCH, EXTRA, NAME = "spconv.spatial_shape", "spconv.batch_size", "spconv.output_padding", "spconv.name"


def import_graph(program: Any) -> Graph:
    """Imports an exported program.

    Args:
        program: what torch.export.export gives for a model in eval mode, built of spconv_compiler.pytorch modules.

    Returns:
        The network at level spconv; str() of it is MLIR.

    Raises:
        InputError: a node cannot be compiled. The message says which, from which line, and what is accepted.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise InputError(f"program is a {type(program).__name__}; accepted: what torch.export.export returns")
    check_any_rows(program)
    context = make_context()
    with context, ir.Location.unknown():
        return Importer(program, context).graph()


class Importer:
    """One import. The methods are what the builders of import_ops.py use."""

    def __init__(self, program: Any, context: ir.Context) -> None:
        self._program, self._context = program, context
        self._nodes = list(program.graph.nodes)
        self._constants: dict[Any, torch.Tensor] = {}
        self._inputs: list[Any] = []
        self._values: dict[Any, ir.Value] = {}
        self._arguments: dict[Any, dict[str, ir.Attribute]] = {}
        self._parameters: dict[str, torch.Tensor] = {}
        self._computed: set[str] = set()
        self._limits: dict[Any, tuple[Any, Any]] = {}
        # Nodes that stay in torch, with the first node on the way that could not be taken.
        self._left: dict[Any, Any] = {}
        self._reasons: dict[Any, str] = {}
        self._groups = RowGroups()
        self.module = ir.Module.create()
        with ir.InsertionPoint(self.module.body):
            self._function = func.FuncOp("network", ([], []))
            self._block = self._function.add_entry_block()

    def graph(self) -> Graph:
        self._placeholders()
        self._group_rows()
        with ir.InsertionPoint(self._block):
            for node in self._nodes:
                if node.op == "call_function" and isinstance(_meta(node), (torch.Tensor, tuple, list)):
                    self._take(node)
        (results,) = next(node for node in self._nodes if node.op == "output").args
        known = self._constants, self._values, list(self._arguments)
        head, tail, given = cut(self._nodes, self._inputs, *known, results)
        self._finish([self._values[node] for node in given])
        signature = self._program.call_spec
        names = tuple(node.name for node in self._inputs)
        specs = signature.in_spec, signature.out_spec
        frozen = self._frozen(names)
        held = {node.name: node.meta["spconv_name"] for node in self._constants if "spconv_name" in node.meta}
        computed = frozenset(self._computed)
        given_by = Ir.of(self._context, self.module)
        return Graph(given_by, self._parameters, head, tail, names, frozen, *specs, held, computed)

    def _frozen(self, names: Sequence[str]) -> dict[int, Any]:
        """The inputs that torch.export takes for constants."""
        given = (spec.arg for spec in self._program.graph_signature.input_specs)
        values = {arg.name: arg.value for arg in given if isinstance(arg, ConstantArgument)}
        return {place: values[name] for place, name in enumerate(names) if name in values}

    def _placeholders(self) -> None:
        signature, program = self._program.graph_signature, self._program
        state = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        constants = {**signature.inputs_to_lifted_tensor_constants}
        for node in self._nodes:
            if node.op != "placeholder":
                continue
            if node.name in state:
                name = state[node.name]
                held = program.state_dict if name in program.state_dict else program.constants
                self._constants[node] = held[name].detach()
                node.meta["spconv_name"] = name
            elif node.name in constants:
                self._constants[node] = program.constants[constants[node.name]]
            else:
                self._inputs.append(node)

    def _group_rows(self) -> None:
        for node in self._nodes:
            if node.target in SPARSE and node.target not in MAKE_COORDS:
                given = arguments(node)
                self._groups.place(given["features"], given["coords"], node)
                self._groups.place(node, given.get("out_coords", given["coords"]), node)
            elif node.op == "call_function" and node.target in POINTWISE and _is_rows(_meta(node)):
                rows = [value for value in node.all_input_nodes if _is_rows(_meta(value))]
                self._groups.link(node, [value for value in rows if value not in self._constants])

    # What becomes of a node.

    def _take(self, node: Any) -> None:
        given = node.all_input_nodes
        if all(value in self._constants for value in given) and given:
            args, named = (_known(values, self._constants) for values in (node.args, node.kwargs))
            self._constants[node] = node.target(*args, **named)
            return
        left = next((value for value in given if value in self._left), None)
        if node.target in SPARSE:
            if left is not None:
                raise self._refuse_between(node, self._left[left])
            self._build(node, SPARSE[node.target])
        elif left is not None:
            self._left[node] = self._left[left]
        elif node.target in POINTWISE and self._on_rows(node):
            try:
                self._build(node, POINTWISE[node.target])
            except Left as reason:
                self._left[node] = node
                self._reasons[node] = str(reason)
        elif any(value in self._values for value in given) and not self._only_arguments(given):
            self._left[node] = node

    def _on_rows(self, node: Any) -> bool:
        """Whether an op works on rows that sparse ops read or make."""
        meta = _meta(node)
        return _is_rows(meta[0] if isinstance(meta, (tuple, list)) else meta) and self._groups.coords(node) is not None

    def _only_arguments(self, nodes: Sequence[Any]) -> bool:
        """Whether none of the nodes is a result of the sparse part."""
        return not any(value in self._values and value not in self._arguments for value in nodes)

    def _build(self, node: Any, builder: Any) -> None:
        with location_of(node):
            self._values[node] = builder(self, node)

    def _refuse_between(self, node: Any, culprit: Any) -> InputError:
        reason = self._reasons.get(culprit, "there is no such op for rows")
        return refuse(culprit, f"{reason}, and {node.name} needs its result", supported())

    def _argument(self, node: Any, type_: ir.Type) -> ir.Value:
        """A node that torch makes before the sparse part, as an argument of the function."""
        value = self._block.add_argument(type_, location_of(node))
        self._arguments[node] = {NAME: ir.StringAttr.get(node.name)}
        self._values[node] = value
        return value

    def _finish(self, results: list[ir.Value]) -> None:
        with ir.InsertionPoint(self._block):
            func.ReturnOp(results)
        for node, attributes in self._arguments.items():
            shape, batches = self._limits.get(node, (None, None))
            attributes |= _limit_attributes(shape, batches)
        types = [argument.type for argument in self._block.arguments]
        kind = ir.FunctionType.get(types, [value.type for value in results])
        self._function.attributes["function_type"] = ir.TypeAttr.get(kind)
        dictionaries = [ir.DictAttr.get(attributes) for attributes in self._arguments.values()]
        self._function.attributes["arg_attrs"] = ir.ArrayAttr.get(dictionaries)
        self.module.operation.verify()

    # What builders ask for.

    def rows(self, node: Any, value: Any) -> ir.Value:
        """Rows of channels that `node` reads."""
        if value in self._left:
            raise self._refuse_between(node, self._left[value])
        if not isinstance(value, torch.fx.Node) or value in self._constants or not _is_rows(_meta(value)):
            raise refuse(node, f"{value} is taken for rows of features", "float tensors [N, C] of the sparse part")
        return self._values[value] if value in self._values else self._argument(value, self.row_type(value))

    def row_type(self, node: Any) -> ir.Type:
        """tensor<?xCxT> of a node's result."""
        meta = _meta(node)
        meta = meta[0] if isinstance(meta, (tuple, list)) else meta
        channels, element = meta.shape[1], _ELEMENTS.get(meta.dtype)
        if not isinstance(channels, int) or element is None:
            raise refuse(node, f"it is {meta.dtype} {list(meta.shape)}", f"[N, C] of {', '.join(_ELEMENTS.values())}")
        return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size(), channels], element_named(element))

    def coords(self, node: Any, value: Any) -> ir.Value:
        """Coordinates that `node` reads."""
        if value in self._left:
            raise self._refuse_between(node, self._left[value])
        meta = _meta(value)
        if value in self._constants or meta.dtype != torch.int32 or meta.dim() != 2 or meta.shape[1] != 4:
            raise refuse(node, f"coordinates are {meta.dtype} {list(meta.shape)}", "int32 [N, 4], no constant")
        return self._values[value] if value in self._values else self._argument(value, coords_type(64))

    def coords_of(self, node: Any) -> ir.Value:
        """The coordinates that the rows of `node` belong to."""
        return self.coords(node, self._groups.coords(node))

    def is_known(self, value: Any) -> bool:
        """Whether a value is a number, or a tensor that does not depend on the inputs."""
        return isinstance(value, (int, float, torch.Tensor)) or value in self._constants

    def constant(self, node: Any, value: Any) -> torch.Tensor:
        """A tensor that is known: a parameter, a buffer, or what was computed of such."""
        if isinstance(value, torch.Tensor):
            return value
        if value not in self._constants:
            raise refuse(node, f"{value} is computed when the model runs", "parameters and buffers of the model")
        return self._constants[value]

    def parameter(self, node: Any, value: Any, element: str | None = None) -> ir.Value:
        """A known tensor as a value, under its name in the model."""
        tensor = self.constant(node, value)
        name = value.meta.get("spconv_name", OWN + value.name)
        self._parameters[name] = tensor
        if "spconv_name" not in value.meta:
            self._computed.add(name)
        kind = _ELEMENTS.get(tensor.dtype) if element is None else element
        if kind is None:
            raise refuse(node, f"{name} is {tensor.dtype}", ", ".join(_ELEMENTS.values()))
        return parameter(name, ir.RankedTensorType.get(list(tensor.shape), element_named(kind)))

    def derived(self, name: str, tensor: torch.Tensor, *, computed: bool = True) -> ir.Value:
        """A tensor under a name of its own: computed of parameters, or of a number in the program."""
        name = OWN + name
        self._parameters[name] = tensor.contiguous()
        if computed:
            self._computed.add(name)
        type_ = ir.RankedTensorType.get(list(tensor.shape), element_named(_ELEMENTS[tensor.dtype]))
        return parameter(name, type_)

    def channel_vector(self, node: Any, value: Any) -> ir.Value:
        """A known vector with a number per channel, as f32."""
        if self.constant(node, value).dim() != 1:
            raise refuse(node, f"{value} has shape {list(self._constants[value].shape)}", "one number per channel, [C]")
        return self.parameter(node, value, "f32")

    def per_channel(self, node: Any, what: str, value: Any, factor: float = 1) -> ir.Value:
        """A known number or vector, times a factor, as f32 with an element for each channel of `node`.

        Raises:
            Left: the value is computed when the model runs, or does not have a number per channel.
        """
        if not self.is_known(value):
            raise Left(f"{value} is computed when the model runs")
        given = self._constants[value] if isinstance(value, torch.fx.Node) else torch.as_tensor(value)
        count = ir.RankedTensorType(self.row_type(node)).get_dim_size(1)
        if given.numel() not in (1, count) or (given.dim() > 0 and given.shape[-1] != given.numel()):
            raise Left(f"{value} has shape {list(given.shape)}, not one number or one per channel [{count}]")
        if factor == 1 and given.shape == (count,) and self._is_own(value):
            return self.parameter(node, value, "f32")
        numbers = (given.double() * factor).reshape(-1).expand(count)
        # Equal ones have one name, so that cse finds them.
        name = f"{float(numbers[0])}.{count}" if given.numel() == 1 else f"{node.name}.{what}"
        return self.derived(name, numbers.float(), computed=not isinstance(value, (int, float)))

    @staticmethod
    def _is_own(value: Any) -> bool:
        """Whether a known value is a floating parameter or buffer of the model itself."""
        return isinstance(value, torch.fx.Node) and "spconv_name" in value.meta and _meta(value).dtype in _ELEMENTS

    def numbers(self, node: Any, values: Any) -> tuple[int, int, int]:
        """Three numbers that are known."""
        if not all(isinstance(value, int) for value in values):
            raise refuse(node, f"{list(values)} is computed when the model runs", "numbers")
        z, y, x = values
        return z, y, x

    def limit(self, node: Any, coords: Any, shape: Any, batches: Any) -> None:
        """Notes where coordinates must lie."""
        known = (None if shape is None else self.numbers(node, shape), batches)
        if not isinstance(batches, int):
            raise refuse(node, "batch_size is computed when the model runs", "a number")
        if self._limits.setdefault(coords, known) != known:
            raise refuse(node, f"coordinates lie in {known} and in {self._limits[coords]}", "one shape for one tensor")

    def with_limits(
        self, node: Any, made: ir.Value, coords: Any, extra: tuple[int, int, int] = (0, 0, 0)
    ) -> ir.Value:
        """The coordinates that `node` makes of `coords`, with the shape that these lie in as attributes."""
        shape, batches = self._limits[coords]
        attributes = _limit_attributes(shape, batches)
        if any(extra):
            attributes[EXTRA] = ir.DenseI64ArrayAttr.get(list(extra))
        for name, attribute in attributes.items():
            made.owner.operation.attributes[name] = attribute
        return made


def _limit_attributes(shape: Any, batches: Any) -> dict[str, ir.Attribute]:
    found: dict[str, ir.Attribute] = {}
    if shape is not None:
        found[SHAPE] = ir.DenseI64ArrayAttr.get(list(shape))
    if batches is not None:
        found[BATCH] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), batches)
    return found


def _meta(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def _is_rows(meta: Any) -> bool:
    if isinstance(meta, (tuple, list)) and meta:
        meta = meta[0]
    return isinstance(meta, torch.Tensor) and meta.dim() == 2 and meta.dtype in _ELEMENTS


def _known(value: Any, constants: Mapping[Any, torch.Tensor]) -> Any:
    """Arguments with nodes replaced by what they are."""
    return _pytree.tree_map_only(torch.fx.Node, lambda node: constants[node], value)
