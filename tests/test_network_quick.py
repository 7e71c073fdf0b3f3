"""The quick call of a captured layer on the HIP shim: the same bits, and the long way for all that it has not seen."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import pytest
import torch
from hip_harness import Shim
from network_cases import SHAPE, voxels, with_integers
from test_hip_tensors import Gpu, GpuTensor, gpu
from test_network_replay import Layer, call, compiled, eager, same

from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.network import quick
from spconv_compiler.network.captured import LastWork
from spconv_compiler.network.intake import Intake
from spconv_compiler.network.replay import Replay
from spconv_compiler.runtime.driver_device import DriverDevice
from spconv_compiler.runtime.hip import Stream

__all__ = ["gpu"]
pytestmark = pytest.mark.usefixtures("shim", "without_gradients")


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every call that replay.py takes the long way."""
    found: list[int] = []
    run = Replay.run

    def noted(self: Replay, *given: Any) -> Any:
        found.append(1)
        return run(self, *given)

    monkeypatch.setattr(Replay, "run", noted)
    return found


@pytest.mark.parametrize("lasting", [False, True])
def test_calls_are_quick_once_the_graph_is_there(
    gpu: Gpu, shim: Shim, long_way: list[int], monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    """The third call on; two launches and what the graph launches; whatever the number of voxels, on any stream.

    Streams that last are marked when a call comes on another one, others in every call.
    """
    monkeypatch.setattr(quick, "_lasts", lambda index, stream: lasting)
    model = with_integers(Layer(), 4)
    net, replay = compiled(model, 30)
    kept: list[tuple[Any, Any]] = []
    with Stream(gpu.hip) as other:
        home = gpu.current
        for number, count in enumerate((30, 32, 32, 20, 1, 31, 30)):
            gpu.current = other if number % 2 else home
            frame = voxels(count, count + number)
            kept.append((net(*(gpu.put(tensor) for tensor in frame)), eager(model, frame)))
            assert len(long_way) == min(number + 1, 2)
            assert (replay.graphs, replay.reason) == (1, None) or number == 0
        for stream in (other, home):
            stream.synchronize()
        assert all(torch.equal(gpu.fetch(found), wanted) for found, wanted in kept)
        gpu.current = home
    assert shim.launched.count("place_rows_b256") == 1 and shim.launched.count("place_rows_by_words_b256") == 5


def test_a_call_waits_for_its_coordinates_alone(gpu: Gpu, shim: Shim) -> None:
    """When a quick call returns the convolution has not run: nobody has asked for it."""
    model, frame = with_integers(Layer(), 4), voxels(30, 1)
    net, _ = compiled(model, 30)
    tensors = [gpu.put(tensor) for tensor in frame]
    for _ in range(2):
        net(*tensors)
    gpu.current.synchronize()
    shim.launched.clear()
    out = net(*tensors)
    # What needs no coordinates comes first.
    first, second, *_ = shim.launched
    assert first.startswith(("fill_grid", "clear_sort")) and second == "place_rows_by_words_b256"
    assert not any(name.startswith("gemm") for name in shim.launched)
    assert torch.equal(gpu.fetch(out), eager(model, frame))


class Written:
    """Words that a stream writes, of a driver that has no such call: as copies in the stream's order.

    Values are those at the time of the call, as the driver's are.
    """

    places, nbytes = (4, 1), 16

    def __init__(self, gpu: Gpu, device: Any) -> None:
        self._gpu, self._device = gpu, device
        with device.stream() as stream:
            self._memory = device.allocate("words", self.nbytes, stream)
        self.pointer = self._memory.pointer
        self.words, self.writes, self.code = [0] * 5, 0, 0

    def write(self, stream: int) -> None:
        self.writes += 1
        for number, place in enumerate(self.places):
            for half in range(2):
                word = ctypes.c_int32(self.words[place] >> 32 * half).value
                self._device.fill_words(self.pointer + 8 * number + 4 * half, word, 1, stream)

    def bare(self) -> tuple[Any, tuple[Any, ...]]:
        def written(stream: Any, *given: Any) -> int:
            assert given == (2, "operations", 0)
            if not self.code:
                self.write(self._gpu.current.handle)
            return self.code

        return written, (2, "operations", 0)

    def failed(self, code: int) -> LaunchError:
        return LaunchError(f"the write: {code}")


def test_words_may_be_written_by_the_stream(
    gpu: Gpu, shim: Shim, long_way: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front of the graph, on any stream; calls that follow may change them. The host's words serve again at will."""
    made: list[Written] = []

    def stream_words(device: Any) -> Written:
        made.append(Written(gpu, device))
        return made[-1]

    model = with_integers(Layer(), 4)
    net, replay = compiled(model, 30)
    frames = [voxels(count, count) for count in (30, 30, 32, 20, 1, 31)]
    with Stream(gpu.hip) as other, monkeypatch.context() as patch:
        patch.setattr(DriverDevice, "stream_words", stream_words)
        home = gpu.current
        for number, frame in enumerate(frames):
            gpu.current = other if number % 2 else home
            assert same(call(gpu, net, frame), eager(model, frame))
        gpu.current = home
        (words,) = made
        assert len(long_way) == 2 and words.writes == 4
        # The driver refuses: another device is current, or there is another cause.
        words.code = 1
        tensors = [gpu.put(tensor) for tensor in frames[3]]
        for current in (True, False):
            patch.setattr(DriverDevice, "calls", _calls(current))
            replay.make_quick()
            with contextlib.nullcontext() if not current else pytest.raises(LaunchError, match="the write: 1"):
                assert torch.equal(gpu.fetch(net(*tensors)), eager(model, frames[3]))
        assert len(long_way) == 2 and words.writes == 5
        replay.stream_writes = False
        for frame in frames[2:]:
            assert same(call(gpu, net, frame), eager(model, frame)) and replay.graphs == 1
        assert len(long_way) == 3 and words.writes == 5 and len(made) == 1
        made.clear()
        other.synchronize()


def _calls(current: bool) -> Any:
    """DriverDevice.calls, of a device that is the current one or not."""
    before = DriverDevice.calls
    return lambda device: before(device)._replace(is_current=lambda: current)


def test_wrong_frames_raise_and_leave_no_trace(gpu: Gpu, shim: Shim) -> None:
    model, frame = with_integers(Layer(), 4), voxels(30, 1)
    net, replay = compiled(model, 30)
    features, indices = frame
    for _ in range(3):
        assert same(call(gpu, net, frame), eager(model, frame))
    for column, value in ((0, 2), (0, -1), (1, SHAPE[0]), (2, -1), (3, SHAPE[2])):
        wrong = indices.clone()
        wrong[7, column] = value
        with pytest.raises(InputError, match="1 coords are out of range, the first in row 7"):
            call(gpu, net, (features, wrong))
        assert replay.reason == "coords of indices are out of range"
        assert same(call(gpu, net, frame), eager(model, frame)) and replay.graphs == 1
    for given, words in (
        ((features[:29], indices), "features have 29 rows"),
        ((features.double(), indices), "dtype float64"),
        ((features[:, :2].contiguous(), indices), "2 channels"),
        ((features, indices[:, :3].contiguous()), r"shape \[30, 3\]"),
        ((features, indices.float()), "dtype f32"),
    ):
        with pytest.raises(InputError, match=words):
            call(gpu, net, given)
    shim.fail("hipModuleLaunchKernel", "hipErrorLaunchFailure")
    with pytest.raises(LaunchError, match="hipModuleLaunchKernel: hipErrorLaunchFailure"):
        call(gpu, net, frame)
    assert same(call(gpu, net, frame), eager(model, frame)) and replay.graphs == 1


def test_what_goes_the_long_way(gpu: Gpu, long_way: list[int]) -> None:
    """Memory that begins anywhere, more voxels than there is room for, gradients, graphs switched off."""
    model, frame = with_integers(Layer(), 4), voxels(32, 1)
    net, replay = compiled(model, 30)
    for _ in range(3):
        call(gpu, net, frame)
    long_way.clear()
    features, indices = (gpu.put(tensor) for tensor in frame)
    assert isinstance(features, GpuTensor) and isinstance(indices, GpuTensor)
    out = net(features.rows(1, 31), indices.rows(1, 31))
    assert features.rows(1, 31).data_ptr() % 16 and len(long_way) == 1
    assert torch.equal(gpu.fetch(out), eager(model, (frame[0][1:31], frame[1][1:31])))
    big = voxels(50, 2)
    for ways in (2, 3, 3):
        assert same(call(gpu, net, big), eager(model, big)) and len(long_way) == ways
    replay.on = False
    assert same(call(gpu, net, frame), eager(model, frame)) and replay.reason == "graphs are switched off"
    replay.on = True
    # What asks for a gradient may have to be told that there is none.
    long_way.clear()
    net(features.requires_grad_(), indices)
    assert len(long_way) == 1
    gpu.capturing = True
    out = net(features.detach(), indices)
    assert replay.reason is not None and "captures the stream" in replay.reason


def test_a_call_that_ends_early_is_waited_for(gpu: Gpu, shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graph has not read yet where its frame is, and the next call is to write there."""
    found: list[list[str]] = []
    wait = LastWork.wait

    def noted(self: LastWork) -> None:
        wait(self)
        found.append([*shim.launched])

    monkeypatch.setattr(LastWork, "wait", noted)
    model = with_integers(Layer(), 4)
    net, replay = compiled(model, 30)
    frames = [voxels(count, count) for count in (30, 30, 30, 20, 32)]
    for frame in frames[:3]:
        assert same(call(gpu, net, frame), eager(model, frame))
    first, second = ([gpu.put(tensor) for tensor in frame] for frame in frames[3:])
    shim.fail("hipEventRecord", "hipErrorLaunchFailure")
    with pytest.raises(LaunchError, match="hipEventRecord"):
        net(*first)
    shim.launched.clear()
    found.clear()
    assert same(gpu.fetch(net(*second)), eager(model, frames[4])) and replay.graphs == 1
    (launched,) = found
    assert launched.count("place_rows_by_words_b256") == 1


def test_results_have_memory_of_their_own(gpu: Gpu) -> None:
    """Memory is found one call ahead: for this stream, in the mode that the result is made in, while it is small."""
    model, frame = with_integers(Layer(), 4), voxels(30, 1)
    net, _ = compiled(model, 30)
    tensors, kept = [gpu.put(tensor) for tensor in frame], []
    for turn in range(6):
        with torch.inference_mode(turn % 3 == 2):
            kept.append(net(*tensors))
            assert kept[-1].is_inference() == (turn % 3 == 2)
    assert len({out.data_ptr() for out in kept}) == 6
    assert all(torch.equal(gpu.fetch(out), eager(model, frame)) for out in kept)


def test_without_memory_for_the_words_calls_go_the_long_way(
    gpu: Gpu, long_way: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is said once."""

    def refused(self: Intake, words: Any) -> None:
        raise LaunchError("no memory of the host is left")

    monkeypatch.setattr(Intake, "by_words", refused)
    model, frame = with_integers(Layer(), 4), voxels(30, 1)
    net, replay = compiled(model, 30)
    for _ in range(4):
        assert same(call(gpu, net, frame), eager(model, frame))
    assert len(long_way) == 4 and replay.graphs == 1
    said = [record.args for record in caplog.records if "long way" in record.msg]
    assert said == [("no memory of the host is left",)]
