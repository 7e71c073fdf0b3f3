"""What a model computes, as a list of calls: to know, without torch.export, a network that was compiled before.

The model's forward runs on tensors without contents (torch's device "meta"), and every call of torch is written down:
the function, where its tensors come from, its other arguments, the user's line. What torch.export gives is decided by
these calls, as long as forward does the same in both: so everything it could decide by, and that is no part of the
list, raises here, and the model goes through torch.export. That is contents of tensors, which are not there; numbers of
voxels, which can be handed on and compared with themselves alone (`Rows`); and every function that is not in
recorded_ops.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.nn.utils import stateless
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from spconv_compiler.network.lines import is_library
from spconv_compiler.network.recorded_ops import CALLS, FACTS, Unsure

# Sizes from here on are numbers of voxels, which no memory holds.
_LEAST_ROWS = 2**30
_FIRST_ROWS = 2**40
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.memory_format)
_FLAGS = ("_is_compiling_flag", "_is_exporting_flag")


class Rows:
    """A number of voxels that is not known: equal to itself, and nothing else can be said of it."""

    def __init__(self, size: int) -> None:
        self.size = size

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # As in torch.export: a program may tell sizes from other things.
        return torch.SymInt

    def __eq__(self, other: object) -> bool:
        if type(other) is Rows and other.size == self.size:
            return True
        raise Unsure("a number of voxels is compared")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _unknown(self, *others: Any) -> NoReturn:
        raise Unsure("something is computed of a number of voxels")

    __hash__ = __bool__ = __int__ = __index__ = __float__ = __str__ = __repr__ = __format__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __add__ = __radd__ = __sub__ = __rsub__ = _unknown
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unknown


class Recorder(TorchFunctionMode):
    """One recording.

    Attributes:
        lines: the calls so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        # By identity; tensors are held, so that no other one takes it.
        self._known: dict[int, tuple[str, torch.Tensor]] = {}
        self._outer: set[int] = set()
        self._rows: set[int] = set()

    def place(self, name: str, like: torch.Tensor, rows: int | None = None) -> torch.Tensor:
        """A tensor without contents that stands for one that is given; `rows`: its first size, if that may be any."""
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        if rows is not None:
            made = torch.empty((rows, *like.shape[1:]), dtype=like.dtype, device="meta")
        if isinstance(like, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=like.requires_grad)
        self._known[id(made)] = (name, made)
        self._outer.add(id(made))
        return made

    def name(self, value: Any) -> str:
        """A value, as it is written down."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._known:
                raise Unsure("a tensor is none that forward was given, nor a result")
            return self._known[id(value)][0]
        if type(value) is Rows:
            return f"rows{value.size - _FIRST_ROWS}"
        if type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}"
        if type(value) in (list, tuple):
            return f"{type(value).__name__}({', '.join(self.name(item) for item in value)})"
        if type(value) is slice:
            return f"slice({', '.join(self.name(item) for item in (value.start, value.stop, value.step))})"
        raise Unsure(f"an argument is a {type(value).__name__}")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in FACTS:
            self.name(args[0])
            return self._told(FACTS[func](*args, **named))
        if func not in CALLS:
            raise Unsure(f"{func} is not known")
        label, run = CALLS[func]
        if torch.is_autocast_enabled("cpu"):
            raise Unsure("autocast")
        given = [self.name(value) for value in args]
        given += [f"{name}={self.name(value)}" for name, value in named.items()]
        args, named = _sizes(args), _sizes(named)
        result = run(self, *args, **named)
        modes = f"{int(torch.is_grad_enabled())}{int(torch.is_inference_mode_enabled())}"
        self.lines.append(f"{self._keep(result)} = {label}({', '.join(given)}) {modes} {_line()}")
        return result

    def fresh_rows(self) -> int:
        """A number of voxels that a call makes."""
        self._rows.add(_FIRST_ROWS + len(self._rows))
        return max(self._rows)

    def refuse_given(self, value: torch.Tensor) -> None:
        """Raises Unsure where a call would write to what forward is given."""
        if id(value) in self._outer:
            raise Unsure("a call writes to a parameter, a buffer or an input")

    def _told(self, fact: Any) -> Any:
        """A fact of a tensor, as forward may know it."""
        if isinstance(fact, torch.Size):
            return tuple(self._told(size) for size in fact)
        if type(fact) is int and fact >= _LEAST_ROWS:
            if fact not in self._rows:
                raise Unsure("a size is computed of a number of voxels")
            return Rows(fact)
        return torch.device("cpu") if isinstance(fact, torch.device) else fact

    def _keep(self, result: Any) -> str:
        leaves = result if isinstance(result, (list, tuple)) else [result]
        for leaf in leaves:
            if type(leaf) is not torch.Tensor and not isinstance(leaf, torch.nn.Parameter):
                raise Unsure(f"a call gives a {type(leaf).__name__}")
            if id(leaf) not in self._known:
                self._known[id(leaf)] = (f"v{len(self._known)}", leaf)
        return ", ".join(self._known[id(leaf)][0] for leaf in leaves)


def record(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], rows: Sequence[int]) -> list[str]:
    """What a model's forward does, a line per call; the tensors that it has and is given come first.

    Args:
        model: in eval mode. args, kwargs: of its forward.
        rows: numbers of voxels: a tensor of the arguments that has one for its first size may have any.

    Raises:
        Unsure: it cannot be told.
        Exception: what the model raises, on tensors without contents.
    """
    recorder = Recorder()
    others = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    if others or not all(hasattr(torch.compiler, flag) for flag in _FLAGS):
        raise Unsure("another mode is active, or torch has none of the variables by which programs know of a trace")
    lines, state = _state(model, recorder)
    leaves, spec = _pytree.tree_flatten((tuple(args), dict(kwargs)))
    lines.append(f"arguments {_pytree.treespec_dumps(spec)}")
    given: list[Any] = []
    sizes = {count: recorder.fresh_rows() for count in rows}
    for number, leaf in enumerate(leaves):
        line, placed = _argument(recorder, f"in{number}", leaf, sizes)
        lines.append(line)
        given.append(placed)
    args, kwargs = _pytree.tree_unflatten(given, spec)
    with torch.no_grad(), _as_exported(), stateless._reparametrize_module(model, state), _unchanged(model), recorder:
        result = model(*args, **kwargs)
    results, spec = _pytree.tree_flatten(result)
    lines += recorder.lines
    lines.append(f"results {', '.join(recorder.name(item) for item in results)} {_pytree.treespec_dumps(spec)}")
    return lines


def _state(model: torch.nn.Module, recorder: Recorder) -> tuple[list[str], dict[str, torch.Tensor]]:
    """(lines of a model's modules and tensors, tensors that stand for them)."""
    lines = [f"module {name} {_class(module)} {int(module.training)}" for name, module in model.named_modules()]
    placed: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in tensors_of(model).items():
        if type(tensor) not in (torch.nn.Parameter, torch.Tensor) or not tensor.is_cpu:
            raise Unsure(f"{name} is a {type(tensor).__name__} on {tensor.device}")
        if id(tensor) not in placed:
            placed[id(tensor)] = recorder.place(name, tensor)
        state[name] = placed[id(tensor)]
        kind = f"{type(tensor).__name__} {tensor.dtype} {list(tensor.shape)} {list(tensor.stride())}"
        lines.append(f"{name} is {recorder.name(state[name])} {kind} {int(tensor.requires_grad)}")
    return lines, state


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a model by name; one that has several names under each."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return {**named, **dict(model.named_buffers(remove_duplicate=False))}


def _class(module: torch.nn.Module) -> str:
    kind = type(module)
    if kind.__module__.startswith(("torch._dynamo", "torch.jit", "torch.fx")):
        raise Unsure(f"a module is a {kind.__name__}")
    return f"{kind.__module__}.{kind.__qualname__}"


def _argument(recorder: Recorder, name: str, leaf: Any, rows: Mapping[int, int]) -> tuple[str, Any]:
    """(the line of an argument, what stands for it)."""
    if not isinstance(leaf, torch.Tensor):
        return f"{name} is {recorder.name(leaf)}", leaf
    plain = type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.is_cpu and leaf.layout is torch.strided
    if not plain or max(leaf.shape, default=0) >= _LEAST_ROWS:
        raise Unsure(f"an argument is a {type(leaf).__name__} {list(leaf.shape)} on {leaf.device}")
    many = rows.get(leaf.shape[0]) if leaf.dim() > 0 else None
    shape = list(leaf.shape) if many is None else [f"rows{many - _FIRST_ROWS}", *leaf.shape[1:]]
    order = "contiguous" if leaf.is_contiguous() else list(leaf.stride())
    return f"{name} is {leaf.dtype} {shape} {order} {int(leaf.requires_grad)}", recorder.place(name, leaf, many)


@contextlib.contextmanager
def _as_exported() -> Iterator[None]:
    """What torch.export tells a program that asks whether it is compiled."""
    before = [getattr(torch.compiler, flag) for flag in _FLAGS]
    try:
        for flag in _FLAGS:
            setattr(torch.compiler, flag, True)
        yield
    finally:
        for flag, value in zip(_FLAGS, before, strict=True):
            setattr(torch.compiler, flag, value)


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Puts back what forward has changed of its modules, and raises Unsure if it has."""
    before = [(module, [(held, _copied(held)) for held in _held(module)]) for module in model.modules()]
    changed = False
    try:
        yield
    finally:
        for _, everything in before:
            for held, copy in everything:
                if not _alike(held, copy):
                    changed = True
                    _refill(held, copy)
    if changed:
        raise Unsure("forward changes attributes of the model")


def _held(module: torch.nn.Module) -> list[Any]:
    """A module's attributes, and the lists, dicts and sets among them."""
    return [vars(module), *(value for value in vars(module).values() if isinstance(value, (dict, list, set)))]


def _copied(held: Any) -> Any:
    return dict(held) if isinstance(held, dict) else list(held)


def _alike(held: Any, copy: Any) -> bool:
    if isinstance(held, dict):
        return list(held) == list(copy) and all(held[key] is copy[key] for key in copy)
    return len(held) == len(copy) and all(one is other for one, other in zip(held, copy, strict=True))


def _refill(held: Any, copy: Any) -> None:
    held.clear()
    if isinstance(held, list):
        held.extend(copy)
    else:
        held.update(copy)


def _sizes(value: Any) -> Any:
    """Arguments with numbers of voxels as torch takes them."""
    if isinstance(value, (list, tuple)):
        return type(value)(_sizes(item) for item in value)
    if isinstance(value, dict):
        return {name: _sizes(item) for name, item in value.items()}
    return value.size if type(value) is Rows else value


def _line() -> str:
    """The user's line that is running."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not is_library(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
