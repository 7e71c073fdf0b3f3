"""Numbers of a model that overflow when they are folded into a convolution: what eager gives, infinities and all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import spconv_compiler as sc
import spconv_compiler.pytorch as spconv

COORDS = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 2], [1, 0, 0, 0]], dtype=torch.int32)
SCALES = torch.tensor([1e39, 1e3, 1.0, 0.0, -1e38, 1e-3, 2.0, -1e3])


class After(torch.nn.Module):
    """A convolution, and what is done to its rows."""

    def __init__(self, end: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.end = spconv.SubMConv3d(4, 8, 3), end

    def forward(self, features: torch.Tensor, coords: torch.Tensor) -> torch.Tensor:
        return self.end(self.conv(spconv.SparseConvTensor(features, coords, [8, 8, 16], 2)).features)


ENDS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    # What is done, and how many of its ops are steps of their own.
    "a product that overflows in steps": (lambda x: x * 1e38 * 1e3, 2),
    "a large bias, scaled": (lambda x: (x + 1e38) * 1e3, 1),
    "small, then large": (lambda x: (x + 1) * 1e3 * 1e38, 1),
    "beyond f32": (lambda x: x * 1e39, 1),
    "infinite": (lambda x: x * float("inf"), 1),
    "in some channels": (lambda x: x * SCALES, 1),
    "an activation behind it": (lambda x: torch.relu(x * 1e38 * 1e3), 2),
    "ordinary": (lambda x: (x * 1e3 + 7) * 1e-3 * 1e6, 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_overflows_is_not_folded(name: str) -> None:
    end, steps = ENDS[name]
    torch.manual_seed(0)
    model = After(end).eval()
    features = torch.randn(3, 4)
    net = sc.compile(model, (features, COORDS))
    assert sum(step.operation == "affine" for step in net.plan.steps) == steps
    with torch.no_grad():
        expected = model(features, COORDS)
    assert bool(torch.isinf(expected).any()) == (name != "ordinary")
    torch.testing.assert_close(net(features, COORDS), expected, rtol=1e-4, atol=0, equal_nan=True)


def test_a_batch_norm_of_large_numbers_is_folded_while_sums_have_room() -> None:
    norm = torch.nn.BatchNorm1d(8)
    with torch.no_grad():
        norm.weight.fill_(1e18)
        norm.running_mean += 3  # type: ignore[operator]
    features = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    model = After(norm).eval()
    net = sc.compile(model, (features, COORDS))
    assert not any(step.operation == "affine" for step in net.plan.steps)
    with torch.no_grad():
        torch.testing.assert_close(net(features, COORDS), model(features, COORDS), rtol=1e-4, atol=1e14)
