"""`sc.compile`: a model, exported and compiled once, as a callable for any number of voxels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from spconv_compiler import env
from spconv_compiler.arrays import Array
from spconv_compiler.coordinates import check_coords
from spconv_compiler.errors import InputError
from spconv_compiler.forward_only import forward_only
from spconv_compiler.network.arguments import (
    Parameters,
    as_arguments,
    bind_example,
    check_frozen,
    check_tensor,
    parameters_of,
)
from spconv_compiler.network.cpu import CpuNetwork
from spconv_compiler.network.kernels import Progress, compile_all, is_on_rows, plan_options
from spconv_compiler.network.maps import RunMaps, requests_of
from spconv_compiler.network.memory import MemoryReport, Slots, assign_slots, peak_bytes
from spconv_compiler.network.plan import NetworkPlan
from spconv_compiler.network.remembered import Compiled, remember, turn
from spconv_compiler.network.replay import Replay
from spconv_compiler.network.steps import StepNetwork
from spconv_compiler.operands import check_features
from spconv_compiler.pytorch.coords import to_int32
from spconv_compiler.targets import CpuTarget, get_target
from spconv_compiler.tensor_cache import TensorCache
from spconv_compiler.tools.console import progress_bar

if TYPE_CHECKING:
    from spconv_compiler.network.graph import Graph

# Frames whose maps are kept, with keep_maps.
_KEPT_FRAMES = 4


class Network:
    """A compiled model: called as the model is, with any number of voxels. Made by `compile`.

    It can be copied, pickled and saved with torch.save: with its weights, without its kernels, which are found on disk
    or compiled where it is loaded.

    Attributes:
        graph: the network at level spconv, after its passes; str() of it is MLIR.
        plan: sets, maps, values and steps.
        timings: seconds of each part of compiling.
        compiled: kernels that were compiled, and neither in memory nor on disk.
        replay: on a GPU target, what queues calls as one, and says why a call was not; else None.
    """

    def __init__(
        self,
        graph: Graph,
        eager: NetworkPlan,
        plan: NetworkPlan,
        target: str,
        *,
        keep_maps: bool,
        parameters: Parameters | None = None,
    ) -> None:
        self.graph, self.plan, self.target = graph, plan, target
        self._parameters = parameters
        self.timings: dict[str, float] = {}
        self.compiled = 0
        self._eager, self._keep = eager, keep_maps
        on_cpu = isinstance(get_target(target), CpuTarget)
        self._runner = CpuNetwork(plan, target) if on_cpu else StepNetwork(plan, target)
        self._slots: Slots | None = None
        self._requests = requests_of(plan, target)
        self.replay: Replay | None = None
        if isinstance(self._runner, StepNetwork):
            self.replay = Replay(plan, self._runner, self._requests, graph.tail, keep_maps=keep_maps)
        levels = enumerate(plan.levels)
        self._levels = {number: level.argument for number, level in levels if level.argument is not None}
        self._frames: TensorCache[RunMaps] = TensorCache(_KEPT_FRAMES)
        # Trees of plain tensors need not be taken apart.
        count = len(graph.inputs)
        plain = not graph.frozen and graph.in_spec == _pytree.tree_structure(((0,) * count, {}))
        self._tensors = count if plain else -1
        self._one_result = graph.out_spec == _pytree.tree_structure(0)
        self._last: tuple[list[int], int, int] = ([0] * len(plan.levels), 0, 0)

    def __reduce__(self) -> Any:
        """For pickle and copy: kernels are not part of it, but found again, or compiled, where it is loaded."""
        given = self.graph, self._eager, self.plan, self.target, self._keep, self._parameters
        return _restore, (given, self._slots, self.timings)

    def __deepcopy__(self, memo: Any) -> Network:
        """Another network with memory and maps of its own; what neither changes is shared."""
        restore, given = self.__reduce__()
        made: Network = restore(*given)
        return made

    def __repr__(self) -> str:
        return f"Network({len(self.plan.steps)} steps over {len(self.plan.maps)} maps, target={self.target!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives for these arguments.

        Coordinates and features are those of the example in kind, dtype and channels, with any number of voxels.
        Arguments that are no tensors, defaults included, have the values that they were compiled with. By position or
        by keyword is all the same.

        Raises:
            InputError: arguments are not accepted, or coordinates repeat or lie outside of the model's grid.
            LaunchError: out of memory or threads.
        """
        if self.replay is not None and not kwargs and self._one_result:
            quick = self.replay.quick(args)
            if quick is not None:
                self._last = [quick.shape[0]], 0, 0
                return quick
        leaves = self._leaves(args, kwargs)
        if torch.is_grad_enabled():
            with torch.no_grad():
                given, outputs = self._run(leaves)
            sources = [given[place] for place, (kind, _) in enumerate(self.plan.arguments) if kind == "value"]
            outputs = [self._guard(output, sources) for output in outputs]
        else:
            _, outputs = self._run(leaves)
        return outputs[0] if self._one_result else _pytree.tree_unflatten(outputs, self.graph.out_spec)

    def _run(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(what the network is given, what the program gives)"""
        given = self.graph.head(leaves)
        self._check_places(given)
        outputs = None if self.replay is None else self._replayed(self.replay, given, leaves)
        return given, self._step_by_step(given, leaves) if outputs is None else outputs

    def _replayed(self, replay: Replay, given: Sequence[Any], leaves: Sequence[Any]) -> list[Any] | None:
        """The outputs where the call could be queued as one."""
        coords = self._coords(given)
        found = replay.run(coords, self._features(given, lambda level: coords[level].shape[0]), leaves)
        if found is None:
            return None
        outputs, rows = found
        self._last = rows, 0, 0
        if self._tensors == len(leaves) and self._one_result:
            replay.learn(self.graph.head, leaves)
        return outputs

    def _step_by_step(self, given: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        maps = self._maps(given)
        made = self._runner.run(maps, self._features(given, maps.rows), keep=self._keep)
        self._last = maps.counts, maps.peak_bytes, maps.built_bytes
        if self.replay is not None:
            self.replay.note(maps.counts)
        results = [self._result(kind, number, maps, made) for kind, number in self.plan.results]
        return self.graph.tail([*results, *leaves])

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The arguments as the program takes them, in a list."""
        if not kwargs and len(args) == self._tensors and all(isinstance(value, torch.Tensor) for value in args):
            return args
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        if spec != self.graph.in_spec and self._parameters is not None:
            leaves, spec = _pytree.tree_flatten(self._parameters.bind(args, kwargs))
        if spec != self.graph.in_spec:
            found, known = (" ".join(str(item).split()) for item in (spec, self.graph.in_spec))
            raise InputError(f"the arguments are {found}; accepted, as in the example: {known}")
        for place, (name, leaf) in enumerate(zip(self.graph.inputs, leaves, strict=True)):
            if place in self.graph.frozen:
                check_frozen(name, self.graph.frozen[place], leaf)
            else:
                check_tensor(name, leaf)
        return leaves

    def _check_places(self, given: Sequence[Any]) -> None:
        """Checks that all tensors lie on one device: a GPU may reach into another one's memory, or fail."""
        if len({source.device for source in given if isinstance(source, torch.Tensor)}) < 2:
            return
        first: tuple[str, torch.device] | None = None
        for (kind, number), source in zip(self.plan.arguments, given, strict=True):
            if isinstance(source, torch.Tensor):
                name = (self.plan.levels if kind == "level" else self.plan.values)[number].name
                first = first or (name, source.device)
                if source.device != first[1]:
                    raise InputError(
                        f"{first[0]} is on {first[1]} but {name} is on {source.device}; accepted: one device for all"
                    )

    def _coords(self, given: Sequence[Any]) -> dict[int, torch.Tensor]:
        """The coordinate tensors among the arguments, by level."""
        coords = {level: given[place] for level, place in self._levels.items()}
        for level, tensor in coords.items():
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or tensor.shape[1] != 4:
                shape = list(getattr(tensor, "shape", ()))
                raise InputError(f"{self.plan.levels[level].name} has shape {shape}; accepted: int32 [N, 4]")
            if tensor.dtype is torch.int64:
                coords[level] = to_int32(tensor)
        return coords

    def _build_maps(self, coords: Mapping[int, torch.Tensor]) -> RunMaps:
        maps = RunMaps(self.plan, self._requests, coords)
        if self._runner.any_kernel is not None:
            maps.check_limits(self._runner.any_kernel)
        return maps

    def _maps(self, given: Sequence[Any]) -> RunMaps:
        coords = self._coords(given)
        # Of several coordinate tensors none alone says whether all are the same.
        if not self._keep or len(coords) != 1 or self._runner.any_kernel is None:
            return self._build_maps(coords)
        (tensor,) = coords.values()
        checksum = self._runner.any_kernel.checksum
        return self._frames.get(tensor, check_coords(tensor), None, checksum, lambda: self._build_maps(coords))

    def _features(self, given: Sequence[Any], rows: Callable[[int], int]) -> dict[int, Array]:
        found = {}
        for (kind, number), source in zip(self.plan.arguments, given, strict=True):
            if kind == "value":
                value = self.plan.values[number]
                array = check_features(source, rows(value.level), self.plan.levels[value.level].name)
                if (array.shape[1], array.dtype) != (value.channels, value.dtype):
                    raise InputError(
                        f"{value.name} has {array.shape[1]} channels of {array.dtype}; accepted, as in the example: "
                        f"{value.channels} of {value.dtype}"
                    )
                found[number] = array
        return found

    def _result(self, kind: str, number: int, maps: RunMaps, made: Mapping[int, torch.Tensor]) -> Any:
        return maps.coords[number] if kind == "level" else made[number]

    def _guard(self, output: Any, sources: Sequence[Any]) -> Any:
        floating = isinstance(output, torch.Tensor) and output.is_floating_point()
        return forward_only(output, "a compiled network", *sources) if floating else output

    def place_values(self, leaves: Sequence[Any]) -> None:
        """Decides which values share memory, by the sizes of an example, given as a list."""
        with torch.no_grad():
            maps = self._build_maps(self._coords(self.graph.head(leaves)))
        self._last = maps.counts, 0, 0
        self.use_slots(assign_slots(self.plan, _sizes(self.plan, maps.counts)))

    def use_slots(self, slots: Slots | None) -> None:
        """Which values share memory, as place_values has decided it; None: they share none."""
        self._slots = slots
        if slots is not None:
            self._runner.use_slots(slots)

    def memory_report(self) -> MemoryReport:
        """Bytes at the voxels of the last call, or of the example."""
        rows, peak, built = self._last
        features = self._runner.feature_bytes(rows)
        eager = peak_bytes(self._eager, _sizes(self._eager, rows))
        return MemoryReport(features, eager, peak, built, self._runner.arena_bytes, self._runner.parameter_bytes)


def compile(
    model: Any,
    example: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | None = None,
    keep_maps: bool = False,
    progress: Progress | None = None,
) -> Network:
    """Compiles a model of spconv_compiler.pytorch modules into one plan.

    Batch norms are folded into weights, and activations, residual sums and biases done where a convolution's sum is
    complete; layers over the same voxels share maps; values share memory. What comes before the first sparse layer and
    after the last one (to_dense, a dense head) stays torch. Kernels depend on channels and kernel sizes alone: no
    number of voxels compiles anything again. Arguments that are no tensors (batch_size, flags) are constants: a call
    with another value raises. So are parameters: they are folded and packed now, and what is changed in the model
    later, in place or not, needs another call of this, which finds its kernels, and most networks, on disk.

    Args:
        model: a torch.nn.Module in eval mode, or the ExportedProgram of one (then without an example).
        example: its positional arguments: a tuple, or the only one. At least two voxels.
        kwargs: its arguments by keyword.
        target: as in compile_conv; "auto" by default.
        keep_maps: keep the maps of a coordinate tensor while it lives unchanged, for the next call with it. Otherwise a
            map's memory is free as soon as the last layer over it is done.
        progress: called with (kernels compiled, of how many, name); by default a bar on a terminal.

    Raises:
        InputError: the model cannot be compiled; the message names the node, its line and what is accepted.
        ToolchainError: torch is too old to export models.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    name = get_target(env.TARGET.get() if target is None else target).name
    clock = _Clock()
    named = dict(kwargs or {})
    parameters, arguments = None, as_arguments(example, kwargs)
    given: Any = (arguments, named)
    if isinstance(model, torch.export.ExportedProgram):
        found, parameters, given = _planned(model, clock), parameters_of(model), model.example_inputs
    elif isinstance(model, torch.nn.Module):
        parameters, arguments, named = bind_example(model, arguments, named)
        found, given = _looked_up(model, arguments, named, clock), (arguments, named)
    else:
        found = _exported(model, arguments, named, clock)
    graph, eager, plan = found.graph, found.eager, found.plan
    compiled = _compile_kernels(plan, name, progress)
    clock.lap("kernels")
    network = Network(graph, eager, plan, name, keep_maps=keep_maps, parameters=parameters)
    network.timings, network.compiled = clock.laps, compiled
    if given is None:
        network.use_slots(assign_slots(plan, _sizes(plan, [1] * len(plan.levels))))
    else:
        network.place_values(_pytree.tree_leaves(given))
    clock.lap("load")
    return network


def _looked_up(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], clock: _Clock) -> Compiled:
    """The network of a model: from disk, or exported, and then kept there."""
    with turn.lock:
        memory = remember(model, args, kwargs)
        found = None if memory is None else memory.find()
        clock.lap("look up")
        if found is None:
            found = _exported(model, args, kwargs, clock)
            if memory is not None:
                memory.keep(found)
                clock.lap("keep")
    return found


def _exported(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], clock: _Clock) -> Compiled:
    # Networks that are found run without the compiler, and without torch's tracer.
    from spconv_compiler.network.export import export

    program = export(model, args, kwargs)
    clock.lap("export")
    return _planned(program, clock)


def _planned(program: torch.export.ExportedProgram, clock: _Clock) -> Compiled:
    from spconv_compiler.network.build import build_plan
    from spconv_compiler.network.importer import import_graph
    from spconv_compiler.network.passes import optimize, sharing_passes

    graph = import_graph(program)
    # Its sets are those of the plan, whose rows memory_report counts with.
    optimize(graph.module, graph.context, sharing_passes())
    eager = build_plan(graph)
    clock.lap("import")
    optimize(graph.module, graph.context, parameters=graph.parameters)
    plan = build_plan(graph)
    clock.lap("passes")
    return Compiled(graph, eager, plan)


def _restore(given: tuple[Any, ...], slots: Slots | None, timings: Mapping[str, float]) -> Network:
    """What Network.__reduce__ has taken apart."""
    graph, eager, plan, target, keep, parameters = given
    compiled = _compile_kernels(plan, target, None)
    network = Network(graph, eager, plan, target, keep_maps=keep, parameters=parameters)
    network.timings, network.compiled = dict(timings), compiled
    network.use_slots(slots)
    return network


def _compile_kernels(plan: NetworkPlan, target: str, progress: Progress | None) -> int:
    on_cpu = isinstance(get_target(target), CpuTarget)
    options = [item for item in plan_options(plan, target) if on_cpu or not is_on_rows(item)]
    if progress is not None:
        return compile_all(options, progress)
    with progress_bar(len(options)) as step:
        return compile_all(options, lambda done, count, name: step(f"{name} ({done} of {count})"))


def _sizes(plan: NetworkPlan, rows: Sequence[int]) -> list[int]:
    """Bytes of every value."""
    return [rows[value.level] * value.row_bytes for value in plan.values]


class _Clock:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now
