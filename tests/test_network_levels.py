"""Levels and maps of a compiled network in one plan: what it takes, and the launches of CenterPoint's backbone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hip_harness import Shim
from network_cases import voxels, with_integers
from test_hip_tensors import Gpu, gpu
from test_network_replay import Detector, Unet, call, compiled, eager, same

import spconv_compiler as sc
import spconv_compiler.pytorch as spconv
from spconv_compiler.bench.net_plan import launch_plan
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.level_options import LevelMap, MadeLevel, submanifold
from spconv_compiler.nets.backbones import centerpoint
from spconv_compiler.network.level_plan import level_plan
from spconv_compiler.network.plan import NetworkPlan
from spconv_compiler.runtime.driver_library import DriverLibrary

__all__ = ["gpu"]
LAUNCH = "hipModuleLaunchKernel"
DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1))


@pytest.mark.usefixtures("shim")
def test_a_detector_takes_nine_launches_for_its_maps(gpu: Gpu, shim: Shim) -> None:
    """Counted where they arrive, in the call that queues everything by itself before it is captured.

    One more takes the frame in.
    """
    with torch.no_grad():
        model = with_integers(Detector(), 1)
        net, replay = compiled(model)
        call(gpu, net, voxels(90, 90))
        frame = voxels(88, 5)
        shim.launched.clear()
        assert same(call(gpu, net, frame), eager(model, frame))
    kinds = [name.split("_")[0] for name in shim.launched if not name.startswith("pack_")]
    convolutions = [name for name in kinds if name == "gemm"]
    maps = ["clear", "mark", "rank", "rows", "look", *["sort"] * 3, "arrange"]
    assert kinds == ["place", *maps, *convolutions]
    assert len(convolutions) == 4
    assert net._runner.launches() == ([1] * 4, 9)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the driver's functions that are called by name, in order."""
    found: list[str] = []
    function = DriverLibrary.function

    def noted(self: DriverLibrary, name: str) -> Callable[..., int]:
        called = function(self, name)

        def call_it(*arguments: Any) -> int:
            found.append(name)
            return int(called(*arguments))

        return call_it

    monkeypatch.setattr(DriverLibrary, "function", noted)
    return found


@pytest.mark.usefixtures("shim", "without_gradients")
def test_no_host_read_between_the_first_launch_and_the_last(gpu: Gpu, shim: Shim, asked: list[str]) -> None:
    """In the call that queues everything by itself, before it is captured; and the plan counts what was launched."""
    model = with_integers(Detector(), 1)
    net, _ = compiled(model)
    call(gpu, net, voxels(90, 90))
    # Step by step, levels are waited for: what the list is to show.
    steps = asked[asked.index(LAUNCH) : len(asked) - asked[::-1].index(LAUNCH)]
    assert any("Synchronize" in name for name in steps)
    asked.clear()
    shim.launched.clear()
    frame = voxels(88, 5)
    assert same(call(gpu, net, frame), eager(model, frame))
    queued = asked[: asked.index("hipStreamBeginCapture")]
    between = queued[queued.index(LAUNCH) : len(queued) - queued[::-1].index(LAUNCH)]
    assert between.count(LAUNCH) == len(shim.launched) and not [name for name in between if "Synchronize" in name]
    plan = launch_plan(net.plan, "gfx950")
    assert plan["host_reads"] == 0 and plan["together"] and plan["on_rows"] == 0
    gemms = [name for name in shim.launched if name.startswith("gemm")]
    assert plan["convolutions"] == [1] * len(gemms) == [1] * 4
    # One more takes the frame in.
    assert plan["maps"] == len(shim.launched) - len(gemms) - 1


def test_what_is_not_queued_as_one_has_no_count() -> None:
    model = with_integers(Detector(), 1)
    with torch.no_grad():
        net = sc.compile(model, voxels(30, 0), target="cpu")
    found = launch_plan(net.plan, "gfx950-sim")
    assert found["host_reads"] is None and found["why"] == "target gfx950-sim has no graphs"
    with pytest.raises(InputError, match="cpu is no GPU, and has no launches; accepted: gfx950, sm_90"):
        launch_plan(net.plan, "cpu")


def plan_of(model: torch.nn.Module, frame: Any) -> tuple[NetworkPlan, list[Any]]:
    net = sc.compile(model, frame, target="gfx950-sim")
    return net.plan, net._runner._kernels


@pytest.mark.slow
def test_what_is_built_together() -> None:
    """A U-Net's way up is among its maps, and the level that a pool makes among its levels, but not the pool's map."""
    plan, kernels = plan_of(with_integers(Unet(), 2), voxels(30, 0))
    found = level_plan(plan, kernels, "gfx950-sim")
    assert found is not None and len(found.options.levels) == 2
    halves = ConvGeometry((2, 2, 2), (2, 2, 2))
    up = LevelMap(1, 0, dataclasses.replace(halves, transposed=True))
    assert {LevelMap(0, 1, halves), up} < set(found.options.maps)
    assert all(item.writes < 2 for item in found.options.maps)
    plan, kernels = plan_of(with_integers(Detector(), 1), voxels(30, 0))
    found = level_plan(plan, kernels, "gfx950-sim")
    assert found is not None and found.options.levels == (MadeLevel(0, DOWN),)
    cube = submanifold((3, 3, 3))
    assert set(found.options.maps) == {LevelMap(0, 0, cube), LevelMap(0, 1, DOWN), LevelMap(1, 1, cube)}
    # A level that is given beside the first, or whose outputs have gaps, is built by itself.
    given = dataclasses.replace(plan.levels[1], argument=2, map=None)
    assert level_plan(dataclasses.replace(plan, levels=(plan.levels[0], given)), kernels, "gfx950-sim") is None
    gaps = ConvGeometry((1, 1, 1), (2, 2, 2))
    maps = tuple(dataclasses.replace(item, geometry=gaps) if item.makes_level else item for item in plan.maps)
    assert level_plan(dataclasses.replace(plan, maps=maps), kernels, "gfx950-sim") is None


@pytest.mark.slow
def test_launches_of_centerpoint() -> None:
    """21 convolutions, five levels, eight maps: what docs/maps.md says."""
    shape = (41, 32, 32)
    rng = torch.Generator().manual_seed(0)
    places = torch.randperm(shape[0] * shape[1] * shape[2], generator=rng)[:200]
    z, y, x = (places // (32 * 32), places // 32 % 32, places % 32)
    coords = torch.stack([torch.zeros_like(z), z, y, x], 1).int()
    model = centerpoint(spconv, 5, shape).eval().to(torch.bfloat16)
    net = sc.compile(model, (torch.randn(200, 5).to(torch.bfloat16), coords), target="gfx950-sim")
    own, maps = net._runner.launches()
    assert len(own) == 21 and max(own) <= 2 and own.count(1) == 21
    assert maps == 9
