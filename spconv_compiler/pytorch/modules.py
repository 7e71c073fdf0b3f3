"""Containers and feature-wise modules: what is no convolution and no pool."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from spconv_compiler.errors import InputError
from spconv_compiler.options import is_bool
from spconv_compiler.pytorch.core import SparseConvTensor, expand_nd, plain_int
from spconv_compiler.tensor_cache import forget


def given(scope: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor, by name, of its locals()."""
    return {name: value for name, value in scope.items() if name not in ("self", "__class__")}


class SparseModule(nn.Module):
    """Base class of all modules that SparseSequential hands a SparseConvTensor.

    Args:
        name: for messages.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self._sparse_unique_name = ""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._let_go()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *given: Any) -> None:
        self._let_go()
        super()._load_from_state_dict(*given)

    def _let_go(self) -> None:
        """Where torch is told to swap parameters for new ones (torch.__future__), lets caches forget the old ones."""
        if torch.__future__.get_swap_module_params_on_conversion():
            for parameter in self._parameters.values():
                forget(parameter)

    def describe(self) -> str:
        """The layer, for messages: its class, and its name if it has one, else its arguments."""
        name = self._sparse_unique_name or self.name
        return f"{type(self).__name__} {name!r}" if name else f"{type(self).__name__}({self.extra_repr()})"

    def check_input(self, x: Any) -> SparseConvTensor:
        """Raises InputError unless x is a SparseConvTensor."""
        if not isinstance(x, SparseConvTensor):
            raise InputError(f"{self.describe()} is given a {type(x).__name__}; accepted: a SparseConvTensor")
        return x


def check_axes(module: SparseModule, ndim: Any) -> None:
    """Raises InputError unless a layer's spatial axes are 1 to 3."""
    if is_bool(ndim) or ndim not in (1, 2, 3):
        raise InputError(f"{type(module).__name__} has {ndim!r} spatial axes; accepted: 1, 2 or 3")


def numbers_of(module: SparseModule, **arguments: Any) -> list[int]:
    """Arguments of a constructor that are one whole number; raises InputError as plain_int."""
    return [plain_int(value, f"{type(module).__name__}: {name}") for name, value in arguments.items()]


def axes_of(module: Any, **arguments: Any) -> list[list[int]]:
    """Arguments that are one number, or one per axis, as lists; raises InputError as expand_nd."""
    kind, ndim = type(module).__name__, module.ndim
    return [expand_nd(ndim, value, f"{kind}: {name}") for name, value in arguments.items()]


class SparseSequential(SparseModule):
    """Modules one after another; dense ones (Linear, BatchNorm1d, ReLU, …) run on the features.

    Args:
        args: modules, or one OrderedDict of them; kwargs: more modules by name.
    """

    def __init__(self, *args: Any, **kwargs: nn.Module) -> None:
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else enumerate(args)
        for name, module in (*named, *kwargs.items()):
            self.add(module, str(name))

    def __getitem__(self, index: int | slice) -> nn.Module:
        if isinstance(index, slice):
            return SparseSequential(OrderedDict(list(self._modules.items())[index]))
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range of {len(self)} modules")
        return list(self._modules.values())[index]  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._modules)

    def add(self, module: nn.Module, name: str | None = None) -> None:
        """Appends a module, named by its number unless a name is given."""
        key = str(len(self._modules)) if name is None else name
        if key in self._modules:
            raise InputError(f"a module is named {key!r} already; accepted: another name")
        self.add_module(key, module)

    def forward(self, input: Any) -> Any:
        """Runs the modules."""
        for module in self._modules.values():
            if isinstance(input, SparseConvTensor) and not is_spconv_module(module):
                input = _on_features(module, input)
            else:
                input = module(input)  # type: ignore[misc]
        return input


def _on_features(module: Any, x: SparseConvTensor) -> SparseConvTensor:
    # Batch statistics of nothing are an error in torch; no row would change.
    statistics = module.training and isinstance(module, nn.modules.batchnorm._BatchNorm)
    if statistics and not torch.compiler.is_compiling() and x.features.shape[0] == 0:
        return x
    return x.replace_feature(module(x.features))


class _Featurewise(nn.Module):
    """Mixed into a dense module: takes a SparseConvTensor or features."""

    def forward(self, input: Any) -> Any:
        """Runs on the features."""
        if isinstance(input, SparseConvTensor):
            return input.replace_feature(super().forward(input.features))
        return super().forward(input)


class SparseBatchNorm(_Featurewise, nn.BatchNorm1d):
    """nn.BatchNorm1d on the features of a SparseConvTensor."""


class SparseSyncBatchNorm(_Featurewise, nn.SyncBatchNorm):
    """nn.SyncBatchNorm on the features of a SparseConvTensor."""


class SparseReLU(_Featurewise, nn.ReLU):
    """nn.ReLU on the features of a SparseConvTensor."""


class SparseIdentity(_Featurewise, nn.Identity):
    """nn.Identity for a SparseConvTensor."""


class Identity(nn.Module):
    """Gives what it is given."""

    def forward(self, input: Any) -> Any:
        """The input."""
        return input


class ToDense(SparseModule):
    """SparseConvTensor to a dense tensor, [batch, C, *spatial_shape]."""

    def forward(self, x: SparseConvTensor) -> Tensor:
        """x.dense()"""
        return self.check_input(x).dense()


class RemoveGrid(SparseModule):
    """Lets go of a grid buffer that the SparseConvTensor carries."""

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        """x without its grid."""
        self.check_input(x).grid = None
        return x


def is_spconv_module(module: Any) -> bool:
    """Whether a module takes a SparseConvTensor in a SparseSequential."""
    return isinstance(module, (SparseModule, _Featurewise, Identity))


def is_sparse_conv(module: Any) -> bool:
    """Whether a module is a sparse convolution."""
    from spconv_compiler.pytorch.conv import SparseConvolution

    return isinstance(module, SparseConvolution)


def assign_name_for_sparse_modules(module: nn.Module) -> None:
    """Names every sparse module by its place in `module`: messages then say which layer they are about."""
    for name, found in module.named_modules():
        if isinstance(found, SparseModule):
            found._sparse_unique_name = name
