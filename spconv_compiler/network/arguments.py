"""The arguments of calls: bound to the parameters of forward, and held to what was compiled unless they are tensors."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from spconv_compiler.errors import InputError

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters of a forward.

    Attributes:
        signature: all of them.
        given: those that the example gives, with its pytree and its text, or None where they are not known. The others
            are compiled with their defaults.
    """

    signature: inspect.Signature
    given: Mapping[str, tuple[Any, str] | None]

    def __getstate__(self) -> dict[str, Any]:
        """For pickle."""
        given = {name: item and (tree_like(item[0]), item[1]) for name, item in self.given.items()}
        return {"signature": self.signature, "given": given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = {name: item and (structure_of(item[0]), item[1]) for name, item in state["given"].items()}
        vars(self).update(signature=state["signature"], given=given)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, by position and by keyword as those of the example.

        Raises:
            InputError: they do not fit the parameters, or one is given that the example left out.
        """
        bound = _bound(self.signature, args, kwargs)
        bound.apply_defaults()
        for name, parameter in self.signature.parameters.items():
            value = bound.arguments[name]
            if name in self.given:
                _check_tree(name, self.given[name], value)
                continue
            if parameter.kind not in _VARIADIC:
                check_frozen(name, parameter.default, value)
            if parameter.kind not in _VARIADIC or not value:
                del bound.arguments[name]
        return _split(bound)


def as_arguments(example: Any, kwargs: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """The example as a tuple of positional arguments; None is none where there are `kwargs`."""
    if example is None and kwargs:
        return ()
    return tuple(example) if isinstance(example, (tuple, list)) else (example,)


def rows_of(example: Any) -> list[int]:
    """The numbers of rows of the coordinate tensors of an example, each once."""
    tensors = (leaf for leaf in _pytree.tree_leaves(example) if isinstance(leaf, torch.Tensor))
    return list(dict.fromkeys(tensor.shape[0] for tensor in tensors if _is_coords(tensor)))


def _is_coords(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.dtype in (torch.int32, torch.int64) and tensor.shape[1] in (2, 3, 4)


def bind_example(
    model: torch.nn.Module, example: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Parameters, tuple[Any, ...], dict[str, Any]]:
    """(the parameters of a model, the example's arguments by position, those by keyword).

    Raises:
        InputError: the example does not fit the parameters.
    """
    signature = _without_annotations(inspect.signature(model.forward))
    bound = _bound(signature, example, kwargs)
    args, named = _split(bound)
    given = {name: (_pytree.tree_structure(value), _tree_text(value)) for name, value in bound.arguments.items()}
    return Parameters(signature, given), args, named


def parameters_of(program: Any) -> Parameters | None:
    """Those of an exported program, if it tells their names."""
    call = program.module_call_graph[0].signature
    names = getattr(call, "forward_arg_names", None)
    if not names:
        return None
    by_keyword = set(call.in_spec.child(1).context) if hasattr(call.in_spec, "child") else set()
    plain, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, keyword if name in by_keyword else plain) for name in names]
    return Parameters(inspect.Signature(parameters), dict.fromkeys(names))


def tree_like(spec: Any) -> Any:
    """A pytree of a given structure, for pickle: torch warns of specs that are unpickled. None stays None."""
    return None if spec is None else [_pytree.tree_unflatten([0] * spec.num_leaves, spec)]


def structure_of(tree: Any) -> Any:
    """The structure that tree_like was given."""
    return None if tree is None else _pytree.tree_structure(tree[0])


def check_frozen(name: str, compiled: Any, given: Any) -> None:
    """Raises InputError unless an argument that is no tensor is what it was when the model was compiled."""
    if not _same(compiled, given):
        raise InputError(
            f"argument {name!r} is {_text(given)}, and the model was compiled with {_text(compiled)}; accepted: "
            f"{_text(compiled)}, or compile again for another"
        )


def check_tensor(name: str, given: Any) -> None:
    """Raises InputError unless an argument that was a tensor in the example is one."""
    if not isinstance(given, torch.Tensor):
        raise InputError(f"argument {name!r} is {_text(given)}; accepted, as in the example: a tensor")


def _check_tree(name: str, known: tuple[Any, str] | None, given: Any) -> None:
    """Raises InputError unless an argument is of lists, dicts and classes as it was in the example."""
    if known is not None and _pytree.tree_structure(given) != known[0]:
        raise InputError(f"argument {name!r} is {_tree_text(given)}; accepted, as in the example: {known[1]}")


def _tree_text(value: Any) -> str:
    """A value, or its pytree where there are tensors in it."""
    leaves, spec = _pytree.tree_flatten(value)
    inside = any(leaf is not value and isinstance(leaf, torch.Tensor) for leaf in leaves)
    return " ".join(str(spec).split()) if inside else _text(value)


def _bound(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        accepted = ", ".join(map(str, signature.parameters.values()))
        raise InputError(f"the arguments do not fit: {error}; accepted: ({accepted})") from None


def _without_annotations(signature: inspect.Signature) -> inspect.Signature:
    """Annotations say nothing here, and may be what cannot be pickled."""
    plain = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return signature.replace(parameters=plain, return_annotation=signature.empty)


def _split(bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By position and by keyword, in the order of the parameters, those of **kwargs by name."""
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in bound.arguments:
            bound.arguments[name] = dict(sorted(bound.arguments[name].items()))
    return bound.args, bound.kwargs


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same types, through lists, tuples and dicts."""
    (first, spec), (second, other_spec) = _pytree.tree_flatten(one), _pytree.tree_flatten(other)
    return spec == other_spec and all(_same_leaf(a, b) for a, b in zip(first, second, strict=True))


def _same_leaf(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    # NaN is itself.
    return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"
