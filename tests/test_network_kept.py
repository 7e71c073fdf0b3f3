"""Calls over maps that are kept: the list of calls of an earlier one is used again, and only its addresses change."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
from network_cases import CHANNELS, SHAPE, Residual, voxels, with_integers
from torch import nn

import spconv_compiler
import spconv_compiler.pytorch as spconv
from spconv_compiler.errors import InputError
from spconv_compiler.network.memory import Slots

sc: Any = spconv_compiler
pytestmark = pytest.mark.usefixtures("without_gradients")


class Two(nn.Module):
    """Results at two levels, one of them over rows that a residual block passes through; the input is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spconv.SubMConv3d(3, CHANNELS, 3, bias=True)
        self.beside = spconv.SubMConv3d(3, CHANNELS, 3, bias=False)
        self.block = Residual(random.Random(1))
        self.down = spconv.SparseConv3d(CHANNELS, CHANNELS, 2, 2, bias=False)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = spconv.SparseConvTensor(features, indices, SHAPE, 2)
        fine = self.block(self.first(x))
        return fine.features + self.beside(x).features, self.down(fine).features


def same(found: Any, wanted: Any) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every list of calls that is written anew."""
    from spconv_compiler.network.cpu import CpuNetwork

    found: list[Any] = []
    fill = CpuNetwork._filled
    monkeypatch.setattr(CpuNetwork, "_filled", lambda *given: (found.append(1), fill(*given))[1])
    return found


def test_features_and_results_of_every_call_are_its_own(filled: list[Any]) -> None:
    model = with_integers(Two(), 3)
    small, large = voxels(60, 1), voxels(200, 2)
    net = sc.compile(model, small, target="cpu", keep_maps=True)
    held = []
    for seed in range(4):
        features = torch.randint(-4, 5, small[0].shape, generator=torch.Generator().manual_seed(seed)).float()
        held.append((net(features, small[1]), model(features, small[1])))
    assert len(filled) == 1
    # A larger arena takes the place of the first one, and the lists that point into that are of no use any more.
    assert same(net(*large), model(*large)) and same(net(*small), model(*small))
    assert same(net(*large), model(*large)) and same(net(*small), model(*small)) and len(filled) == 3
    assert all(same(*pair) for pair in held)
    assert net.memory_report().maps > 0 and [len(one) for one in net(*small)] == [60, len(model(*small)[1])]
    # What is wrong is still said.
    with pytest.raises(InputError, match="features have 59 rows"):
        net(small[0][:59], small[1])
    small[1][0] = torch.tensor([0, 0, 0, 12])
    with pytest.raises(InputError, match="1 coords are out of range, the first in row 0"):
        net(*small)


def test_another_number_of_threads_or_layout_is_noticed(filled: list[Any]) -> None:
    model, frame = with_integers(Two(), 4), voxels(80, 3)
    net = sc.compile(model, frame, target="cpu", keep_maps=True)
    threads = torch.get_num_threads()
    try:
        for count in (2, 1, 1, 2):
            torch.set_num_threads(count)
            assert same(net(*frame), model(*frame))
    finally:
        torch.set_num_threads(threads)
    assert len(filled) == 3
    results = {number for _, number in net.plan.results}
    # A slot of its own for every value.
    net.use_slots(Slots(tuple((step.out,) for step in net.plan.steps if step.out not in results), {}))
    assert same(net(*frame), model(*frame)) and len(filled) == 4


def test_threads_over_one_frame() -> None:
    """Each has an arena of its own, and none writes into the list that the others read."""
    model, (_, coords) = with_integers(Two(), 5), voxels(150, 4)
    frames = [torch.randint(-4, 5, (150, 3), generator=torch.Generator().manual_seed(n)).float() for n in range(4)]
    wanted = [model(features, coords) for features in frames]
    net = sc.compile(model, (frames[0], coords), target="cpu", keep_maps=True)
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(40):
                if not same(net(frames[number], coords), wanted[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(frames))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
