"""A network at level spconv, with what it takes to run it on a model's tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from spconv_compiler.network.arguments import structure_of, tree_like
from spconv_compiler.network.boundary import TorchPart

if TYPE_CHECKING:
    from spconv_compiler.bindings import ir

# Before names of tensors that are not the model's own: modules and parameters have no such names.
OWN = "%"
_SPECS = ("in_spec", "out_spec")


class Ir:
    """A module and its context; one that is given as text is parsed when it is asked for."""

    def __init__(self, text: str, parsed: tuple[ir.Context, ir.Module] | None = None) -> None:
        self._text, self._parsed = text, parsed

    @classmethod
    def of(cls, context: ir.Context, module: ir.Module) -> Ir:
        """One that is parsed."""
        return cls("", (context, module))

    def get(self) -> tuple[ir.Context, ir.Module]:
        """(context, module)"""
        if self._parsed is None:
            # Networks that are found on disk run without MLIR.
            from spconv_compiler.bindings import ir
            from spconv_compiler.context import make_context

            context = make_context()
            self._parsed = context, ir.Module.parse(self._text, context)
        return self._parsed

    def text(self) -> str:
        """With locations."""
        if self._parsed is None:
            return self._text
        return str(self._parsed[1].operation.get_asm(enable_debug_info=True))


@dataclasses.dataclass(frozen=True)
class Graph:
    """A network at level spconv.

    Attributes:
        mlir: one function @network; its arguments have names, and coordinates the limits that they must keep.
        parameters: the tensors that spconv.parameter ops name.
        head: makes the arguments of @network, in order, of the program's inputs.
        tail: makes the program's results of those of @network and of the program's inputs.
        inputs: names of the program's inputs. frozen: what those are that are no tensors, by place.
        in_spec, out_spec: pytrees of its arguments and results.
        held: names in the model of the tensors that head and tail hold, by the names that they have there.
        computed: those of `parameters` that the import has computed of the model's tensors.
    """

    mlir: Ir = dataclasses.field(repr=False)
    parameters: Mapping[str, torch.Tensor] = dataclasses.field(repr=False)
    head: TorchPart = dataclasses.field(repr=False)
    tail: TorchPart = dataclasses.field(repr=False)
    inputs: tuple[str, ...] = ()
    frozen: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    in_spec: Any = dataclasses.field(default=None, repr=False)
    out_spec: Any = dataclasses.field(default=None, repr=False)
    held: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    computed: frozenset[str] = dataclasses.field(default=frozenset(), repr=False)

    @property
    def context(self) -> ir.Context:
        """MLIR's context of `module`."""
        return self.mlir.get()[0]

    @property
    def module(self) -> ir.Module:
        """The network as an MLIR module."""
        return self.mlir.get()[1]

    def __str__(self) -> str:
        return str(self.module.operation.get_asm(enable_debug_info=False))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the module as text."""
        kept = {name: value for name, value in vars(self).items() if name != "mlir"}
        kept |= {name: tree_like(kept[name]) for name in _SPECS}
        return {**kept, "text": self.mlir.text()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = {name: value for name, value in state.items() if name != "text"}
        kept |= {name: structure_of(kept[name]) for name in _SPECS}
        vars(self).update(kept, mlir=Ir(state["text"]))

    def asm(self, *, locations: bool = True) -> str:
        """The IR as text, with locations behind every op."""
        return str(self.module.operation.get_asm(enable_debug_info=locations, pretty_debug_info=locations))
