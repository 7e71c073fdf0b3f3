"""Networks compiled ahead of time, for machines without the compiler: plan, torch parts and kernels in a folder.

    saved.export_network(model, (features, indices), folder, target="sm_90")     where flydsl is installed
    net = saved.load_network(folder, model.state_dict())                         where the GPU is

The folder holds kernels (a bundle, see bundle.py) and `network.pt`: everything but weights, which are folded anew from
the model's parameters when it is loaded. It is pickled: load only what you trust.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spconv_compiler import bundle
from spconv_compiler.artifact import Artifact
from spconv_compiler.errors import InputError
from spconv_compiler.frame_options import FrameOptions
from spconv_compiler.network.arguments import as_arguments, structure_of, tree_like
from spconv_compiler.network.boundary import TorchPart
from spconv_compiler.network.compile import Network, _compile_kernels
from spconv_compiler.network.kernels import Options, is_on_rows, step_options
from spconv_compiler.network.level_plan import level_plan
from spconv_compiler.network.memory import assign_slots
from spconv_compiler.network.plan import NetworkPlan, with_numbers, without_numbers
from spconv_compiler.network.portable import from_plain, to_plain
from spconv_compiler.network.recipes import Recipe
from spconv_compiler.options import CompileOptions
from spconv_compiler.schedules.mappers import COARSE_ASCENDING, COARSE_KEYS, SORTED_CANDIDATES, Z_DELTA
from spconv_compiler.targets import CpuTarget, get_target

KERNELS, _NETWORK = "kernels", "network.pt"
_FORMAT = 2


@dataclasses.dataclass(frozen=True)
class TorchGraph:
    """What a network needs of importer.Graph to run."""

    head: TorchPart
    tail: TorchPart
    inputs: tuple[str, ...]
    frozen: Mapping[int, Any]
    in_spec: Any
    out_spec: Any


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """A kernel that is not loaded."""

    artifact: Artifact


def export_network(
    model: torch.nn.Module,
    example: Any,
    folder: str | pathlib.Path,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str,
) -> int:
    """Compiles a network for a target that this machine need not have, and writes it to a folder with its kernels.

    Args:
        model, example, kwargs: as sc.compile takes them. folder: made if it is not there.

    Returns:
        How many kernels were written.

    Raises:
        InputError: the model cannot be compiled, or the folder not be written to.
        CompileError, ToolchainError: see compile_conv.
    """
    from spconv_compiler.network.build import build_plan
    from spconv_compiler.network.export import export
    from spconv_compiler.network.importer import import_graph
    from spconv_compiler.network.passes import optimize, sharing_passes

    name = get_target(target).name
    graph = import_graph(export(model, as_arguments(example, kwargs), kwargs))
    optimize(graph.module, graph.context, sharing_passes())
    eager = build_plan(graph)
    optimize(graph.module, graph.context, parameters=graph.parameters)
    plan = build_plan(graph)
    root = pathlib.Path(folder)
    _compile_kernels(plan, name, None)
    count = bundle.export_kernels(root / KERNELS, kernels_of(plan, name))
    names = {recipe.name for step in plan.steps for _, top in step.recipes for recipe in _parts(top)} - {""}
    known = model.state_dict().keys()
    state = {
        "format": _FORMAT,
        "target": name,
        "plan": without_numbers(plan),
        "eager": without_numbers(eager),
        "head": to_plain(graph.head),
        "tail": to_plain(graph.tail),
        "inputs": graph.inputs,
        "frozen": dict(graph.frozen),
        "specs": [tree_like(spec) for spec in (graph.in_spec, graph.out_spec)],
        "tensors": {item: graph.parameters[item].cpu() for item in names if item not in known},
    }
    try:
        torch.save(state, root / _NETWORK)
    except OSError as error:
        raise InputError(f"{root / _NETWORK} cannot be written: {error.strerror}") from error
    return count


def load_network(
    folder: str | pathlib.Path, parameters: Mapping[str, torch.Tensor], *, keep_maps: bool = False
) -> Network:
    """The network that `export_network` has written, with the parameters of the model or of its checkpoint.

    While it lives, kernels that a call needs are found in the folder too.

    Raises:
        InputError: the folder holds no network of this version, or a parameter is missing or has another shape.
        LaunchError: see driver.load_conv.
    """
    root = pathlib.Path(folder)
    try:
        state = torch.load(root / _NETWORK, map_location="cpu", weights_only=False)
    except OSError as error:
        raise InputError(f"{root} holds no network ({error.strerror}); saved.export_network writes one") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise InputError(f"{root / _NETWORK} is of another version; accepted: what this version has written")
    tensors, known = {**state["tensors"], **parameters}, dict[Recipe, torch.Tensor]()
    plan, eager = (with_numbers(state[name], tensors, known) for name in ("plan", "eager"))
    in_spec, out_spec = map(structure_of, state["specs"])
    head, tail = (from_plain(state[name]) for name in ("head", "tail"))
    graph: Any = TorchGraph(head, tail, state["inputs"], state["frozen"], in_spec, out_spec)
    bundle.add(root / KERNELS)
    network = Network(graph, eager, plan, state["target"], keep_maps=keep_maps)
    # Which values share memory is right at any sizes.
    network.use_slots(assign_slots(plan, [value.row_bytes for value in plan.values]))
    return network


def kernels_of(plan: NetworkPlan, target: str) -> list[Options]:
    """Every kernel that a plan may need on a target, each once.

    Those of steps; and for the first step over every map, which builds it, also those with the other width of keys and
    with the other mappers. Maps of networks have no other makers.
    """
    from spconv_compiler.compiler import compile_options
    from spconv_compiler.map_request import sparse_options

    on_cpu = isinstance(get_target(target), CpuTarget)
    frames = [] if on_cpu else [FrameOptions(get_target(target).name, by_words) for by_words in (False, True)]
    found: dict[Any, None] = dict.fromkeys(frames)
    seen: set[tuple[Any, ...]] = set()
    loaded: list[Any] = []
    for step in plan.steps:
        options = step_options(step, target)
        loaded.append(None)
        if is_on_rows(options) and not on_cpu:
            continue
        found[options] = None
        loaded[-1] = _Compiled(compile_options(options))
        launches = loaded[-1].artifact.plan.launches
        key = (step.map, step.inverse, *(launch.kernel for launch in launches if launch.group == "pairs"))
        if step.map is not None and key not in seen:
            seen.add(key)
            found.update(dict.fromkeys(_makers(options, on_cpu)))
    together = None if on_cpu else level_plan(plan, loaded, target)
    if together is not None:
        found[together.options] = None
    for map_ in plan.maps:
        if not map_.submanifold:
            for width in (32, 64):
                made = sparse_options("outputs", map_.geometry, target, key_width=width)
                found[made] = None
                if not on_cpu:
                    found[dataclasses.replace(made, mapper=SORTED_CANDIDATES)] = None
    return list(found)


def _makers(options: Options, on_cpu: bool) -> Iterator[Options]:
    others = () if on_cpu else (Z_DELTA,) if isinstance(options, CompileOptions) else (COARSE_KEYS, COARSE_ASCENDING)
    for width in (32, 64):
        yield (wide := dataclasses.replace(options, key_width=width))
        for mapper in others:
            yield dataclasses.replace(wide, mapper=mapper)


def _parts(recipe: Recipe) -> Iterator[Recipe]:
    yield recipe
    for operand in recipe.operands:
        yield from _parts(operand)
