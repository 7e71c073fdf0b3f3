"""Torch parts of a network as plain data: what torch pickles of a graph belongs to one version of torch."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import torch

from spconv_compiler.errors import InputError
from spconv_compiler.network.boundary import TorchPart


@dataclasses.dataclass(frozen=True)
class _Ref:
    """The result of a node."""

    name: str


@dataclasses.dataclass(frozen=True)
class PlainPart:
    """A TorchPart whose module is a list of calls.

    Attributes:
        nodes: (kind, name, target, args, kwargs), as torch.fx has them, a called function by its names.
        tensors: what get_attr nodes name.
    """

    picks: tuple[int | None, ...]
    constants: dict[int, Any]
    nodes: tuple[tuple[str, str, Any, Any, Any], ...] | None
    tensors: dict[str, torch.Tensor]


def to_plain(part: TorchPart) -> PlainPart:
    """The part as data.

    Raises:
        InputError: it calls something that has no name.
    """
    if part.module is None:
        return PlainPart(part.picks, dict(part.constants), None, {})
    nodes = []
    for node in part.module.graph.nodes:
        target = _name_of(node.target) if node.op == "call_function" else node.target
        args, kwargs = (_without_nodes(given) for given in (node.args, node.kwargs))
        nodes.append((node.op, node.name, target, args, kwargs))
    tensors = {name: tensor.detach().cpu() for name, tensor in part.module.named_buffers()}
    return PlainPart(part.picks, dict(part.constants), tuple(nodes), tensors)


def from_plain(plain: PlainPart) -> TorchPart:
    """The inverse of `to_plain`."""
    if plain.nodes is None:
        return TorchPart(plain.picks, None, plain.constants)
    root, graph, made = torch.nn.Module(), torch.fx.Graph(), dict[str, torch.fx.Node]()
    for place, tensor in plain.tensors.items():
        root.register_buffer(place, tensor)
    for kind, name, target, args, kwargs in plain.nodes:
        called = _named(target) if kind == "call_function" else target
        args, kwargs = (_with_nodes(given, made) for given in (args, kwargs))
        made[name] = graph.create_node(kind, called, args, kwargs, name)
    return TorchPart(plain.picks, torch.fx.GraphModule(root, graph), plain.constants)


def _without_nodes(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return _Ref(value.name)
    if isinstance(value, dict):
        return {key: _without_nodes(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        # torch.fx has lists of its own.
        items = [_without_nodes(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _with_nodes(value: Any, made: dict[str, torch.fx.Node]) -> Any:
    if isinstance(value, _Ref):
        return made[value.name]
    if isinstance(value, dict):
        return {key: _with_nodes(item, made) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_with_nodes(item, made) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _name_of(function: Any) -> tuple[str, ...]:
    if isinstance(function, torch._ops.OpOverload):
        space, _, name = function._schema.name.partition("::")
        return "op", space, name, function._overloadname
    module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualified is None or "<" in qualified:
        raise InputError(f"the network calls {function!r}, which has no name; accepted: functions of modules")
    return "function", module, qualified


def _named(name: tuple[str, ...]) -> Any:
    if name[0] == "op":
        # Ops of this package are there once it is imported.
        importlib.import_module("spconv_compiler.pytorch.ops")
        _, space, op, overload = name
        return getattr(getattr(getattr(torch.ops, space), op), overload)
    found: Any = importlib.import_module(name[1])
    for attribute in name[2].split("."):
        found = getattr(found, attribute)
    return found
