"""Packed weights are kept with the weight tensor: packed once, again when it changes, dropped when it dies."""

from __future__ import annotations

import copy
import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import Case, make_case, mismatch, voxels

import spconv_compiler as sc
from spconv_compiler import api, reference, targets
from spconv_compiler.driver import ConvKernel
from spconv_compiler.sparse_driver import SparseKernel

CASE = make_case(voxels(150, 8), 3, 4, 8, whole=True)
KEPT = (torch.from_numpy(CASE.coords), torch.from_numpy(CASE.features))


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    sc.clear_caches()
    yield
    sc.clear_caches()


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one whenever a weight is packed."""
    calls: list[str] = []
    pack = ConvKernel.pack

    def counted(*arguments: Any) -> Any:
        calls.append("packed")
        return pack(*arguments)

    monkeypatch.setattr(ConvKernel, "pack", counted)
    return calls


def fresh() -> torch.Tensor:
    return torch.from_numpy(CASE.weight.copy())


def check(weight: Any, layout: str = "native", **options: Any) -> None:
    """The convolution with what the weight is now."""
    with torch.no_grad():
        features = KEPT[1] if isinstance(weight, torch.Tensor) else CASE.features
        out = sc.subm_conv3d(KEPT[0], features, weight, weight_layout=layout, **options)
    native = reference.to_native_weight(weight, layout, 3)
    problem = mismatch(out, Case(CASE.coords, CASE.features, native), whole=True)
    assert problem is None, problem


def test_packed_once(packed: list[str]) -> None:
    weight = fresh()
    for _ in range(3):
        check(weight)
    assert len(packed) == len(api._weight_cache) == 1


def in_place(weight: torch.Tensor) -> None:
    weight[3, 0, 1, 2, 1] += 1


def through_data(weight: torch.Tensor) -> None:
    weight.data[3, 0, 1, 2, 1] += 1


def through_numpy(weight: torch.Tensor) -> None:
    weight.detach().numpy()[3, 0, 1, 2, 1] += 1


def through_a_flat_view(weight: torch.Tensor) -> None:
    weight.view(-1)[100] += 1


def one_bit(weight: torch.Tensor) -> None:
    weight.detach().numpy().view(np.uint32)[3, 0, 1, 2, 1] ^= 1 << 22


def two_signs(weight: torch.Tensor) -> None:
    """Two changes of the same bits, a checksum of sums or of exclusive ors would not see."""
    bits = weight.detach().numpy().view(np.uint32)
    bits[3, 0, 1, 2, 1] ^= 1 << 31
    bits[5, 0, 1, 2, 1] ^= 1 << 31


def swapped_taps(weight: torch.Tensor) -> None:
    values = weight.detach().numpy()
    values[:, 0], values[:, 2] = values[:, 2].copy(), values[:, 0].copy()


def swapped_neighbours(weight: torch.Tensor) -> None:
    values = weight.detach().numpy().reshape(-1)
    place = int(np.flatnonzero(np.diff(values))[0])
    values[[place, place + 1]] = values[[place + 1, place]]


def by_new_storage(weight: torch.Tensor) -> None:
    weight.data = weight.data.flip(0)


CHANGES = [
    in_place,
    through_data,
    through_numpy,
    through_a_flat_view,
    one_bit,
    two_signs,
    swapped_taps,
    swapped_neighbours,
    by_new_storage,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["tensor", "parameter"])
def test_changed_weights_are_packed_again(change: Callable[[torch.Tensor], None], kind: str, packed: list[str]) -> None:
    weight = fresh() if kind == "tensor" else torch.nn.Parameter(fresh())
    check(weight)
    with torch.no_grad():
        old = weight.clone()
        change(weight)
    assert not np.array_equal(old.detach().numpy().view(np.uint32), weight.detach().numpy().view(np.uint32))
    check(weight)
    assert (len(packed), len(api._weight_cache)) == (2, 1)


CENTRE, BESIDE = (1, 1, 1), (1, 1, 2)
ALONE = np.zeros((1, 4), np.int32)
PAIR = np.array([[0, 0, 0, 0], [0, 0, 0, 1]], np.int32)


def of_few(coords: np.ndarray, features: np.ndarray, weight: np.ndarray, layout: str = "native") -> np.ndarray:
    """The convolution; it is checked against the reference with what the weight is now."""
    out = sc.subm_conv3d(coords, features, weight, weight_layout=layout)
    native = reference.to_native_weight(weight, layout, 3)
    assert mismatch(out, Case(coords, features, native), whole=True) is None
    return out


# Channels: taps of 32 bytes and more are looked at one by one, narrower ones all together.
@pytest.mark.parametrize(
    ("layout", "channels"), [("native", 8), ("native", 11), ("taps", 8), ("torch", 8), ("native", 7)]
)
def test_taps_without_pairs_are_looked_at_when_a_map_uses_them(layout: str, channels: int, packed: list[str]) -> None:
    rng = np.random.default_rng(0)
    features = rng.integers(1, 4, (2, channels)).astype(np.float32)
    native = rng.integers(-3, 4, (5, 3, 3, 3, channels)).astype(np.float32)
    view, weight = native, native
    if layout == "torch":
        weight = np.ascontiguousarray(native.transpose(0, 4, 1, 2, 3))
        view = weight.transpose(0, 2, 3, 4, 1)
    elif layout == "taps":
        whole = np.ascontiguousarray(native.transpose(1, 2, 3, 4, 0))
        view, weight = whole.transpose(4, 0, 1, 2, 3), whole.reshape(27, channels, 5)
    alone, by_tap = features[:1], layout != "torch" and channels >= 8
    of_few(ALONE, alone, weight, layout)
    view[(2, *BESIDE, 3)] += 1
    of_few(ALONE, alone, weight, layout)
    assert len(packed) == (1 if by_tap else 2), "one voxel reaches no tap beside the centre"
    of_few(PAIR, features, weight, layout)
    assert len(packed) == 2, "two neighbours do"
    view[(2, *CENTRE, 3)] += 1
    of_few(ALONE, alone, weight, layout)
    of_few(PAIR, features, weight, layout)
    assert len(packed) == 3
    view[(4, *BESIDE, channels - 1)] *= -1
    view[(0, *BESIDE, 0)] += 2
    of_few(PAIR, features, weight, layout)
    of_few(ALONE, alone, weight, layout)
    assert (len(packed), len(api._weight_cache)) == (4, 1)


def test_every_element_of_a_used_tap_counts(packed: list[str]) -> None:
    """Of taps that are no multiple of a vector, in bf16 no multiple of a word: 17 channels."""
    coords, features = torch.from_numpy(ALONE), torch.ones(1, 17, dtype=torch.bfloat16)
    weight = torch.zeros(3, 3, 3, 3, 17, dtype=torch.bfloat16)
    before = sc.subm_conv3d(coords, features, weight)
    bits = weight.view(torch.int16).numpy()
    for row in range(3):
        for channel in range(17):
            bits[row, 1, 1, 1, channel] = 0x3F80
            after = sc.subm_conv3d(coords, features, weight)
            assert (after - before).tolist()[0][row] == 1, (row, channel)
            bits[row, 1, 1, 1, channel] = 0
    assert len(packed) == 52


def test_maps_between_sets_look_at_the_taps_they_use(monkeypatch: pytest.MonkeyPatch) -> None:
    packings: list[str] = []
    pack = SparseKernel.pack
    monkeypatch.setattr(SparseKernel, "pack", lambda *given: packings.append("packed") or pack(*given))
    features = np.ones((2, 8), np.float32)
    weight = np.zeros((5, 3, 3, 3, 8), np.float32)
    maps = [sc.build_map(coords, 3, out_coords=ALONE) for coords in (ALONE, PAIR)]

    def outputs() -> list[float]:
        return [float(sc.mapped_conv3d(features[: map_.in_rows], weight, map=map_)[0, 2]) for map_ in maps]

    # Through tap i output o reads o + i: without padding the centre is the first tap.
    assert outputs() == [0, 0]
    weight[2, 0, 0, 1, 7] = 3
    assert outputs() == [0, 3] and len(packings) == 2
    weight[2, 0, 0, 0, 0] = 5
    assert outputs() == [5, 8] and len(packings) == 3
    weight[2, 2, 2, 2, 0] = 7
    assert outputs() == [5, 8] and len(packings) == 3


def test_changed_numpy_weights_are_packed_again(packed: list[str]) -> None:
    weight = CASE.weight.copy()
    check(weight)
    weight[3, 0, 1, 2, 1] += 1
    check(weight)
    assert len(packed) == 2


def test_an_optimizer_step_is_noticed() -> None:
    weight = torch.nn.Parameter(fresh())
    check(weight)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    check(weight)


def test_a_loaded_state_is_noticed() -> None:
    layer = torch.nn.Conv3d(4, 8, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(fresh().permute(0, 4, 1, 2, 3))
    check(layer.weight, "torch")
    layer.load_state_dict({"weight": layer.weight.detach() * 2})
    check(layer.weight, "torch")


def test_layouts_of_one_tensor_do_not_meet() -> None:
    """One memory, three meanings: C_in = C_out = taps of the axis, so that every layout accepts the shape."""
    cube = torch.randint(-3, 4, (3, 3, 3, 3, 3), generator=torch.Generator().manual_seed(0)).float()
    features = np.random.default_rng(0).integers(-3, 4, (150, 3)).astype(np.float32)
    for layout in ("native", "torch", "native", "torch"):
        out = sc.subm_conv3d(KEPT[0], torch.from_numpy(features), cube, weight_layout=layout)
        native = reference.to_native_weight(cube, layout, 3)
        assert mismatch(out, Case(CASE.coords, features, native), whole=True) is None
    assert len(api._weight_cache) == 2


def test_kernel_sizes_of_one_tensor_do_not_meet() -> None:
    taps = torch.randint(-3, 4, (9, 4, 8), generator=torch.Generator().manual_seed(0)).float()
    for size in ((1, 3, 3), (3, 1, 3), (3, 3, 1)):
        out = sc.subm_conv3d(*KEPT, taps, weight_layout="taps", kernel_size=size)
        native = reference.to_native_weight(taps, "taps", size)
        assert mismatch(out, Case(CASE.coords, CASE.features, native), whole=True) is None


def test_weights_of_one_flat_tensor_are_told_apart(packed: list[str]) -> None:
    """As in fully sharded training: all parameters are views of one."""
    flat = torch.cat([fresh().reshape(-1), fresh().reshape(-1) * 2])
    size = flat.numel() // 2
    for _ in range(2):
        check(flat[:size].view(CASE.weight.shape))
        check(flat[size:].view(CASE.weight.shape))
    assert len(packed) == 2
    flat[size + 5] += 1
    check(flat[:size].view(CASE.weight.shape))
    check(flat[size:].view(CASE.weight.shape))


def test_kernels_of_other_panels_have_their_own_packing(monkeypatch: pytest.MonkeyPatch, packed: list[str]) -> None:
    """One weight for two targets, here this host and one that is said to have fewer registers."""
    host = targets.get_target("cpu")
    assert isinstance(host, targets.CpuTarget)
    narrow = dataclasses.replace(host, name="narrow", tiles=((4, 1),))
    monkeypatch.setitem(targets._TARGETS, "narrow", narrow)
    coords, features, weight, _ = make_case(voxels(150, 8), 3, 4, 48, whole=True).tensors()
    expected = sc.subm_conv3d(coords, features, weight)
    for target in ("narrow", "cpu", "narrow", host.name):
        assert torch.equal(sc.subm_conv3d(coords, features, weight, target=target), expected)
    assert len(packed) == len(api._weight_cache) == 2


def test_entries_go_with_their_weight() -> None:
    weight = torch.nn.Parameter(fresh())
    check(weight)
    kept = weakref.ref(weight)
    assert len(api._weight_cache) == 1
    del weight
    assert (kept(), len(api._weight_cache)) == (None, 0)


def test_entries_go_with_a_module_in_a_cycle() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(fresh())
            self.hook = lambda: self

    net = Net()
    check(net.weight)
    del net
    gc.collect()
    assert len(api._weight_cache) == 0


def test_a_copied_module_has_its_own_entry() -> None:
    weight = torch.nn.Parameter(fresh())
    check(weight)
    other = copy.deepcopy(weight)
    with torch.no_grad():
        other[0] += 1
    check(other)
    check(weight)
    assert len(api._weight_cache) == 2


def test_temporaries_leave_nothing() -> None:
    weight = fresh()
    for factor in range(5):
        check(weight * factor)
        check(weight.numpy() * factor)
        check(weight.detach())
    assert len(api._weight_cache) == 0


def test_memory_is_given_back() -> None:
    import psutil

    process, sizes = psutil.Process(), []
    coords, features = torch.zeros((1, 4), dtype=torch.int32), torch.ones(1, 128)
    for number in range(40):
        sc.subm_conv3d(coords, features, torch.full((128, 3, 3, 3, 128), float(number)))
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[15] < 8 * 2**20, "25 weights and their packed copies would hold 88 MB"
