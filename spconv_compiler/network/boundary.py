"""What stays in torch: the ops before the first sparse one and after the last one, as two callables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree


@dataclasses.dataclass(frozen=True)
class TorchPart:
    """Results from given tensors, by torch.

    Attributes:
        picks: where results come straight from what is given: for each result its place, or None if `module` makes it.
        module: the ops that make the others, of all that is given; None if there are none.
        constants: results that are no tensors of this run, by place among the results.
    """

    picks: tuple[int | None, ...]
    module: torch.fx.GraphModule | None = None
    constants: Mapping[int, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """The results, in order."""
        made = iter(()) if self.module is None else iter(self.module(*given))
        return [
            given[pick] if pick is not None else self.constants[place] if place in self.constants else next(made)
            for place, pick in enumerate(self.picks)
        ]


def cut(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    constants: Mapping[Any, torch.Tensor],
    values: Mapping[Any, Any],
    arguments: Sequence[Any],
    results: Sequence[Any],
) -> tuple[TorchPart, TorchPart, list[Any]]:
    """(head, tail, the nodes of the sparse part that the tail reads, in order).

    Args:
        nodes: of the whole graph, in order. inputs: those of the user.
        constants: known nodes. values: nodes of the sparse part, its `arguments` included.
        results: of the whole graph.
    """
    head = _part(nodes, list(inputs), constants, arguments)
    inside = {node for node in values if node not in arguments}
    asked = [node for node in results if isinstance(node, torch.fx.Node)]
    wanted = _needed(nodes, asked, {*inside, *inputs, *constants})
    given = [node for node in nodes if node in inside and node in wanted]
    return head, _part(nodes, [*given, *inputs], constants, results), given


def _part(nodes: Sequence[Any], given: list[Any], constants: Mapping[Any, Any], results: Sequence[Any]) -> TorchPart:
    picks: list[int | None] = []
    known: dict[int, Any] = {}
    made: list[Any] = []
    for place, result in enumerate(results):
        picks.append(given.index(result) if result in given else None)
        if picks[-1] is None and not isinstance(result, torch.fx.Node):
            known[place] = result
        elif picks[-1] is None and result in constants:
            known[place] = constants[result]
        elif picks[-1] is None:
            made.append(result)
    if not made:
        return TorchPart(tuple(picks), None, known)
    return TorchPart(tuple(picks), _module(nodes, given, constants, made), known)


def _needed(nodes: Sequence[Any], results: Sequence[Any], ends: set[Any]) -> set[Any]:
    """What results need, down to `ends`."""
    found, waiting = set(), list(results)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [] if node in ends else node.all_input_nodes
    return found


def _module(
    nodes: Sequence[Any], given: list[Any], constants: Mapping[Any, Any], results: Sequence[Any]
) -> torch.fx.GraphModule:
    """A module that makes `results` of `given`."""
    graph, root = torch.fx.Graph(), torch.nn.Module()
    copies = {node: graph.placeholder(node.name) for node in given}
    needed = _needed(nodes, results, {*given, *constants})
    for node in nodes:
        if node not in needed or node in copies:
            continue
        if node in constants:
            root.register_buffer(node.name, constants[node])
            copies[node] = graph.get_attr(node.name)
        else:
            copies[node] = graph.node_copy(node, lambda old: copies[old])
    graph.output(_pytree.tree_map_only(torch.fx.Node, lambda node: copies[node], tuple(results)))
    return torch.fx.GraphModule(root, graph)
