"""Networks on disk, beside the kernels: found again by what a model does (recorder.py), without torch.export or MLIR.

The key is the recording, with the versions of torch, Python and this compiler. An entry holds plans, torch parts and
the network's text, and no parameter: those are folded anew when it is read. Where the import has computed something of
parameters (a matrix of a linear layer, transposed), the values of all of them belong to the key: then the entry of the
recording alone says so, and names no network. So do the values where something is left unfolded for their sake, and
where an entry would fold what is too large with the numbers at hand (overflow.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spconv_compiler import env
from spconv_compiler.cache import open_disk_cache
from spconv_compiler.cache_disk import DiskCache
from spconv_compiler.cache_key import cache_key
from spconv_compiler.network.arguments import rows_of, structure_of, tree_like
from spconv_compiler.network.graph import OWN, Graph, Ir
from spconv_compiler.network.plan import NetworkPlan, with_numbers, without_numbers
from spconv_compiler.network.portable import PlainPart, from_plain, to_plain
from spconv_compiler.network.recipes import Recipe, has_room
from spconv_compiler.network.recorder import record, tensors_of
from spconv_compiler.toolchain import fingerprint

log = logging.getLogger(__name__)

# What an entry holds; another number for another content.
_FORMAT = 1
_NETWORK, _BY_VALUE = "network.pt", "by_value"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A network, imported and planned.

    Attributes:
        graph: after its passes. eager: the plan before they fused anything; plan: the plan.
    """

    graph: Graph
    eager: NetworkPlan
    plan: NetworkPlan


@dataclasses.dataclass(frozen=True)
class Memory:
    """Where the network of a model is kept.

    Attributes:
        parts: of the key. tensors: of the model, by name.
    """

    parts: dict[str, Any]
    tensors: Mapping[str, torch.Tensor]
    disk: DiskCache

    def find(self) -> Compiled | None:
        """The network, with the model's parameters; None if it is not there."""
        files = self.disk.get(cache_key(self.parts))
        found = None if files is None or _BY_VALUE in files else self._load(self.parts, files)
        if found is not None and _has_room(found.plan):
            return found
        parts = self._with_values()
        files = self.disk.get(cache_key(parts))
        return None if files is None else self._load(parts, files)

    def _load(self, parts: dict[str, Any], files: Mapping[str, bytes]) -> Compiled | None:
        try:
            return _unpack(files[_NETWORK], self.tensors)
        except Exception as error:  # what was stored is whole, but not by this version's equal
            log.warning("dropping network %s, which does not load: %s", cache_key(parts), error)
            self.disk.remove(cache_key(parts))
            return None

    def keep(self, compiled: Compiled) -> None:
        """Stores a network; what cannot be stored is left out, and compiled anew each time."""
        # MLIR, which only what has just been compiled has needed.
        from spconv_compiler.passes.fold_affine import KEPT

        try:
            content, by_value = _pack(compiled)
        except Exception as error:  # torch says in many ways that something has no portable form
            log.info("not keeping a network: %s", error)
            return
        parts = self.parts
        if by_value:
            self.disk.put(cache_key(parts), {_BY_VALUE: b"1"}, parts)
        if by_value or KEPT in compiled.graph.mlir.text():
            parts = self._with_values()
        self.disk.put(cache_key(parts), {_NETWORK: content}, parts)

    def _with_values(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for name, tensor in self.tensors.items():
            digest.update(name.encode())
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return {**self.parts, "values": digest.hexdigest()}


def _has_room(plan: NetworkPlan) -> bool:
    return all(
        has_room(recipe, made)
        for step in plan.steps
        for (_, recipe), (_, made) in zip(step.recipes, step.numbers, strict=True)
    )


def remember(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Memory | None:
    """Where the network of a model is kept on disk; None if there is no cache, or the model cannot be recorded."""
    # What is to be printed is printed by passes.
    if env.PRINT_AFTER.get() or env.DUMP_DIR.get() is not None:
        return None
    disk = open_disk_cache()
    rows = rows_of((tuple(args), dict(kwargs)))
    if disk is None or model.training or min(rows, default=0) < 2:
        return None
    try:
        lines = record(model, args, kwargs, rows)
    except Exception as reason:  # a model may raise anything; torch.export then raises it for the user
        log.info("the model is not looked up: %s", reason)
        return None
    parts = {
        "network": type(model).__name__,
        "format": _FORMAT,
        "recording": lines,
        "torch": f"{torch.__version__} {torch.version.git_version} {torch.get_default_dtype()}",
        "python": ".".join(map(str, sys.version_info)),
        "toolchain": fingerprint(),
        "verify": env.VERIFY.get(),
    }
    return Memory(parts, tensors_of(model), disk)


def _pack(compiled: Compiled) -> tuple[bytes, bool]:
    """(an entry's content, whether it depends on values of parameters)."""
    graph = compiled.graph
    sides = [to_plain(part) for part in (graph.head, graph.tail)]
    plain = [dataclasses.replace(side, tensors=_without(side.tensors, graph.held)) for side in sides]
    own = {name: tensor.cpu() for name, tensor in graph.parameters.items() if name.startswith(OWN)}
    constants = [value for side in plain for value in side.constants.values()]
    by_value = bool(graph.computed) or any(side.tensors for side in plain)
    by_value = by_value or any(isinstance(value, torch.Tensor) for value in constants)
    state = {
        "plan": without_numbers(compiled.plan),
        "eager": without_numbers(compiled.eager),
        "sides": plain,
        "places": [sorted(side.tensors.keys() & graph.held.keys()) for side in sides],
        "held": dict(graph.held),
        "parameters": sorted(graph.parameters),
        "own": own,
        "computed": graph.computed,
        "inputs": graph.inputs,
        "frozen": dict(graph.frozen),
        "specs": [tree_like(spec) for spec in (graph.in_spec, graph.out_spec)],
        "text": graph.mlir.text(),
    }
    content = io.BytesIO()
    torch.save(state, content)
    return content.getvalue(), by_value


def _without(tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def _unpack(content: bytes, tensors: Mapping[str, torch.Tensor]) -> Compiled:
    state = torch.load(io.BytesIO(content), weights_only=False)
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    known, made = {**detached, **state["own"]}, dict[Recipe, torch.Tensor]()
    plan, eager = (with_numbers(state[name], known, made) for name in ("plan", "eager"))
    held = state["held"]
    head, tail = (
        from_plain(_with(side, {place: detached[held[place]] for place in places}))
        for side, places in zip(state["sides"], state["places"], strict=True)
    )
    in_spec, out_spec = map(structure_of, state["specs"])
    parameters = {name: known[name] for name in state["parameters"]}
    more = state["inputs"], state["frozen"], in_spec, out_spec, held, state["computed"]
    return Compiled(Graph(Ir(state["text"]), parameters, head, tail, *more), eager, plan)


def _with(side: PlainPart, tensors: Mapping[str, torch.Tensor]) -> PlainPart:
    return dataclasses.replace(side, tensors={**side.tensors, **tensors})


class _Turn:
    """Lets one thread at a time trace: torch tells a program that it is traced by a variable of the whole process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


turn = _Turn()


def _reset_after_fork() -> None:
    # A thread that held it does not exist in the child.
    turn.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
