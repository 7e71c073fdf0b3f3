"""Modules over several SparseConvTensors: run side by side, joined, added."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spconv_compiler.errors import InputError
from spconv_compiler.pytorch import functional
from spconv_compiler.pytorch.coords import same_rows
from spconv_compiler.pytorch.core import SparseConvTensor
from spconv_compiler.pytorch.modules import SparseModule


class ConcatTable(SparseModule):
    """Runs every module that was added on the same input, and gives the list of results."""

    def add(self, module: nn.Module) -> ConcatTable:
        """Appends a module."""
        self.add_module(str(len(self._modules)), module)
        return self

    def forward(self, input: Any) -> list[Any]:
        """[module(input) for each module]"""
        return [module(input) for module in self._modules.values()]  # type: ignore[misc]


class JoinTable(SparseModule):
    """SparseConvTensors with the same indices: their channels side by side."""

    def forward(self, input: list[SparseConvTensor]) -> SparseConvTensor:
        """[N, ΣC]"""
        _check_alike(self, input)
        return input[0].replace_feature(torch.cat([x.features for x in input], dim=1))


class AddTable(SparseModule):
    """SparseConvTensors with the same indices: the sum of their features."""

    def forward(self, input: list[SparseConvTensor]) -> SparseConvTensor:
        """[N, C]"""
        _check_alike(self, input)
        total = input[0]
        for x in input[1:]:
            total = total.replace_feature(total.features + x.features)
        return total


class AddTableMisaligned(SparseModule):
    """SparseConvTensors with any indices: functional.sparse_add."""

    def forward(self, input: list[SparseConvTensor]) -> SparseConvTensor:
        """The sum over the union of voxels."""
        return functional.sparse_add(*input)


def _check_alike(layer: SparseModule, tensors: list[SparseConvTensor]) -> None:
    if not tensors:
        raise InputError(f"{layer.describe()} is given an empty list; accepted: one SparseConvTensor or more")
    for x in tensors:
        layer.check_input(x)
        same_rows(tensors[0].indices, x.indices, f"{layer.describe()}: operands")
