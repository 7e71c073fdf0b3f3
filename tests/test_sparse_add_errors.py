"""Errors about rows of several coordinate tensors say whose rows they are: sparse_add, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import spconv_compiler as sc
import spconv_compiler.pytorch as spconv
from spconv_compiler.errors import InputError
from spconv_compiler.pytorch.functional import sparse_add


class Sum(torch.nn.Module):
    def forward(
        self, features: torch.Tensor, left: torch.Tensor, more: torch.Tensor, right: torch.Tensor
    ) -> torch.Tensor:
        parts = (spconv.SparseConvTensor(*part, [8, 8, 16], 2) for part in ((features, left), (more, right)))
        out: torch.Tensor = sparse_add(*parts).features
        return out


def rows(*given: list[int]) -> torch.Tensor:
    return torch.tensor(given, dtype=torch.int32)


LEFT, RIGHT = rows([0, 1, 1, 1], [0, 2, 2, 2], [1, 0, 0, 0]), rows([0, 1, 1, 1], [1, 3, 3, 3])
MODEL = Sum().eval()
FAULTS = {
    "left": (rows([0, 1, 1, 1], [0, 5, 5, 5], [0, 9, 1, 1]), RIGHT, 2, "[0, 9, 1, 1]", 0),
    "right": (LEFT, rows([0, 1, 1, 1], [0, 9, 1, 1]), 1, "[0, 9, 1, 1]", 1),
    "right, batch": (LEFT, rows([2, 1, 1, 1], [2, 2, 1, 1]), 0, "[2, 1, 1, 1]", 1),
    "right, negative": (LEFT, rows([0, 1, 1, 1], [0, -1, 1, 1]), 1, "[0, -1, 1, 1]", 1),
}


@pytest.fixture(scope="module")
def compiled() -> Callable[..., torch.Tensor]:
    return sc.compile(MODEL, (torch.ones(3, 4), LEFT, torch.ones(2, 4), RIGHT))


@pytest.mark.parametrize("fault", FAULTS)
def test_an_index_out_of_range(fault: str, compiled: Callable[..., torch.Tensor]) -> None:
    left, right, row, index, operand = FAULTS[fault]
    given = (torch.ones(3, 4), left, torch.ones(2, 4), right)
    with pytest.raises(InputError) as caught:
        MODEL(*given)
    assert f"in row {row} of operand {operand}: {index}" in str(caught.value)
    with pytest.raises(InputError) as caught:
        compiled(*given)
    name = ("left", "right")[operand]
    assert str(caught.value).startswith(f"{name}: ") and f"in row {row}: {index}" in str(caught.value)


@pytest.mark.parametrize("name", ["left", "right"])
def test_a_repeated_row_of_a_compiled_sum(name: str, compiled: Callable[..., torch.Tensor]) -> None:
    left, right = (LEFT, rows([1, 2, 2, 2], [1, 2, 2, 2])) if name == "right" else (LEFT[[0, 1, 1]], RIGHT)
    first = {"left": 1, "right": 0}[name]
    with pytest.raises(InputError, match=rf"^{name}: 1 coords repeat .* rows {first} and {first + 1} are both"):
        compiled(torch.ones(3, 4), left, torch.ones(2, 4), right)
    good = compiled(torch.ones(3, 4), LEFT, torch.ones(2, 4), RIGHT)
    assert torch.equal(good, MODEL(torch.ones(3, 4), LEFT, torch.ones(2, 4), RIGHT)), "nothing is left of an error"
