"""The objects of runtime/hip.py on the shim: memory, streams, events and graphs, and what HIP refuses."""

from __future__ import annotations

import ctypes
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hip_harness import Shim, code, raises

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.hip import DeviceMemory, Event, Stream, capture
from spconv_compiler.runtime.hip_device import HipDevice
from spconv_compiler.runtime.hip_library import HipError, HipLibrary
from spconv_compiler.runtime.hip_module import Module


def memory_of(device: HipDevice, values: npt.NDArray[Any], stream: Stream) -> DeviceMemory:
    """A buffer with these contents; the copy is done."""
    made = device.allocate("values", values.nbytes, stream.handle)
    device.copy_in(made, values.ctypes.data, stream.handle)
    stream.synchronize()
    return made


# Memory and order.


def test_a_copy_is_done_when_it_has_been_waited_for(device: HipDevice, stream: Stream) -> None:
    values, back = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
    buffer = memory_of(device, values, stream)
    device.copy_out(back.ctypes.data, buffer, stream.handle)
    assert not back.any() and not stream.done()
    stream.synchronize()
    assert stream.done()
    np.testing.assert_array_equal(back, values)


def test_host_memory_that_changes_too_early_shows(device: HipDevice, stream: Stream) -> None:
    values, back = np.full(8, 1, np.int32), np.zeros(8, np.int32)
    buffer = device.allocate("values", values.nbytes, stream.handle)
    device.copy_in(buffer, values.ctypes.data, stream.handle)
    values[:] = 2
    device.copy_out(back.ctypes.data, buffer, stream.handle)
    stream.synchronize()
    assert (back == 2).all()


def test_fill(device: HipDevice, stream: Stream) -> None:
    buffer, back = device.allocate("bytes", 40, stream.handle), np.zeros(10, np.uint32)
    device.fill(buffer, 0xA5, stream.handle)
    device.copy_out(back.ctypes.data, buffer, stream.handle)
    stream.synchronize()
    assert (back == 0xA5A5A5A5).all()


def test_events_order_streams(hip: HipLibrary, device: HipDevice, stream: Stream) -> None:
    """Without the event the second stream would read what nobody wrote, which is an error."""
    with Stream(hip) as other, Event(hip) as written:
        values, back = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
        buffer = device.allocate("values", values.nbytes, stream.handle)
        device.copy_in(buffer, values.ctypes.data, stream.handle)
        assert written.done(), "an event that was never recorded counts as done"
        written.record(stream)
        other.wait(written)
        device.copy_out(back.ctypes.data, buffer, other.handle)
        other.synchronize()
        np.testing.assert_array_equal(back, values)


def test_streams_without_an_event_are_not_ordered(
    hip: HipLibrary, device: HipDevice, stream: Stream, shim: Shim
) -> None:
    with Stream(hip) as other:
        values, back = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
        buffer = device.allocate("values", values.nbytes, stream.handle)
        device.copy_in(buffer, values.ctypes.data, stream.handle)
        device.copy_out(back.ctypes.data, buffer, other.handle)
        with raises("LaunchFailure"):
            other.synchronize()
        assert "nobody wrote" in str(shim.faults[0])


def test_events_take_the_time(hip: HipLibrary, device: HipDevice, stream: Stream) -> None:
    with Event(hip, timing=True) as start, Event(hip, timing=True) as stop, Event(hip) as untimed:
        start.record(stream)
        buffer = memory_of(device, np.zeros(1000), stream)
        stop.record(stream)
        with raises("NotReady"):
            stop.milliseconds_since(start)
        stop.synchronize()
        assert stop.done() and 0 < stop.milliseconds_since(start) < 1000
        untimed.record(stream)
        untimed.synchronize()
        with raises("InvalidHandle"):
            untimed.milliseconds_since(start)
    buffer.close()


def test_asking_until_it_is_done_ends(hip: HipLibrary, device: HipDevice, stream: Stream) -> None:
    with Event(hip) as event:
        buffer = device.allocate("bytes", 64, stream.handle)
        for byte in range(3):
            device.fill(buffer, byte, stream.handle)
        event.record(stream)
        asked = 0
        while not event.done():
            asked += 1
        assert asked == 4


@pytest.mark.parametrize("explicit", [True, False])
def test_a_stream_that_ends_has_done_its_work(hip: HipLibrary, device: HipDevice, explicit: bool) -> None:
    """HIP may drop what is queued in a stream that is destroyed."""
    stream, back = Stream(hip), np.zeros(16, np.uint8)
    buffer = device.allocate("bytes", 16, stream.handle)
    device.fill(buffer, 3, stream.handle)
    device.copy_out(back.ctypes.data, buffer, stream.handle)
    if explicit:
        stream.close()
    del stream
    gc.collect()
    assert (back == 3).all()


# Handles.


def test_handles_are_released_once(hip: HipLibrary, shim: Shim, device: HipDevice) -> None:
    before = shim.live()
    made = [Stream(hip), Event(hip), Module(hip, code()), DeviceMemory(hip, 100)]
    assert shim.live() != before
    for item in made:
        item.close()
        item.close()
        with pytest.raises(LaunchError, match=f"this {type(item).__name__} has been closed"):
            print(item.handle)
    assert shim.live() == before


def test_handles_go_with_their_objects(hip: HipLibrary, shim: Shim, device: HipDevice) -> None:
    before = shim.live()
    made = [Stream(hip), Event(hip), Module(hip, code()), DeviceMemory(hip, 100)]
    made.append(device.allocate("bytes", 100, 0))
    del made
    gc.collect()
    assert shim.live() == before


def test_a_block_that_raises_releases_too(hip: HipLibrary, shim: Shim, device: HipDevice) -> None:
    before = shim.live()
    with pytest.raises(KeyError), Stream(hip), Event(hip), DeviceMemory(hip, 100):
        raise KeyError
    assert shim.live() == before


def test_memory_outlives_neither_its_stream_nor_its_device(hip: HipLibrary, shim: Shim) -> None:
    """Memory goes back through a stream that lives as long as the memory, whatever goes first."""
    device = HipDevice(hip, 0, "gfx950")
    with device.stream() as handle:
        buffer = device.allocate("bytes", 4096, handle)
    del device
    gc.collect()
    assert shim.live()["bytes"] == 4096
    del buffer
    gc.collect()
    assert "bytes" not in shim.live()


def test_a_release_that_fails_is_logged(hip: HipLibrary, shim: Shim, caplog: pytest.LogCaptureFixture) -> None:
    event = Event(hip)
    shim.fail("hipEventDestroy", "hipErrorLaunchFailure")
    handle = event.handle
    del event
    gc.collect()
    assert "hipEventDestroy: hipErrorLaunchFailure (719)" in caplog.text
    hip.call("hipEventDestroy", handle)


def test_errors_carry_names_and_are_not_left_behind(hip: HipLibrary) -> None:
    """HIP keeps a thread's last error, and torch would take ours for its own."""
    with pytest.raises(HipError) as caught:
        hip.call("hipStreamSynchronize", 12345)
    error = caught.value
    assert (error.call, error.code, error.name) == ("hipStreamSynchronize", 400, "hipErrorInvalidHandle")
    assert str(error) == "hipStreamSynchronize: hipErrorInvalidHandle (400): invalid resource handle"
    assert hip.code("hipGetLastError") == 0
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, HipError) and str(copy) == str(error) and copy.code == 400


# Captures.


def test_a_capture_that_raises_is_dropped(hip: HipLibrary, stream: Stream, shim: Shim, device: HipDevice) -> None:
    before = shim.live()
    with pytest.raises(KeyError), capture(stream) as captured:
        raise KeyError
    with pytest.raises(LaunchError, match="the capture has not ended, or it failed"):
        print(captured.graph)
    assert shim.live() == before
    stream.synchronize()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda device, stream: stream.synchronize(), "StreamCaptureUnsupported"),
        (lambda device, stream: stream.done(), "StreamCaptureUnsupported"),
        (lambda device, stream: DeviceMemory(device.hip, 64), "StreamCaptureUnsupported"),
        (lambda device, stream: device.hip.call("hipDeviceSynchronize"), "StreamCaptureUnsupported"),
        (lambda device, stream: device.load(code()), "StreamCaptureUnsupported"),
    ],
    ids=["synchronize", "query", "malloc", "device", "load"],
)
def test_what_a_capture_does_not_allow(
    device: HipDevice, stream: Stream, call: Callable[[HipDevice, Stream], object], error: str, shim: Shim
) -> None:
    """The error comes at the call; who goes on regardless hears of it at the end of the capture."""
    before = shim.live()
    with raises(error), capture(stream):
        call(device, stream)
    with raises("StreamCaptureInvalidated"), capture(stream), pytest.raises(HipError):
        call(device, stream)
    assert shim.live() == before
    stream.synchronize()


def test_events_in_captures(hip: HipLibrary, device: HipDevice, stream: Stream) -> None:
    """A second stream joins by an event and must come back by one."""
    buffer, back = device.allocate("bytes", 64, stream.handle), np.zeros(64, np.uint8)
    with Stream(hip) as other, Event(hip) as fork, Event(hip) as join:
        with capture(stream) as captured:
            device.fill(buffer, 1, stream.handle)
            fork.record(stream)
            other.wait(fork)
            device.fill(buffer, 2, other.handle)
            join.record(other)
            stream.wait(join)
            device.copy_out(back.ctypes.data, buffer, stream.handle)
        with captured.graph as graph:
            graph.launch(stream)
            stream.synchronize()
        assert (back == 2).all()
        with raises("CapturedEvent"):
            join.synchronize()
        with raises("StreamCaptureUnjoined"), capture(stream):
            fork.record(stream)
            other.wait(fork)
            device.fill(buffer, 3, other.handle)


def test_waiting_in_a_capture_for_work_outside(hip: HipLibrary, device: HipDevice, stream: Stream) -> None:
    buffer = device.allocate("bytes", 64, stream.handle)
    with Stream(hip) as other, Event(hip) as event:
        device.fill(buffer, 1, other.handle)
        event.record(other)
        with raises("StreamCaptureIsolation"), capture(stream):
            stream.wait(event)


def test_captures_do_not_nest_and_end_where_they_began(stream: Stream) -> None:
    with raises("IllegalState"), capture(stream), capture(stream):
        pytest.fail("the second capture began")
    failures: list[BaseException] = []

    def end_elsewhere() -> None:
        try:
            stream.driver.call("hipStreamEndCapture", stream.handle, ctypes.addressof(ctypes.c_void_p()))
        except HipError as error:
            failures.append(error)

    with capture(stream):
        thread = threading.Thread(target=end_elsewhere)
        thread.start()
        thread.join()
    assert "hipErrorStreamCaptureWrongThread" in str(failures[0])


def test_other_threads_may_allocate_during_a_capture(hip: HipLibrary, device: HipDevice, stream: Stream) -> None:
    with capture(stream):
        thread = threading.Thread(target=lambda: DeviceMemory(hip, 64).close())
        thread.start()
        thread.join()


def test_a_graph_that_cannot_be_instantiated(stream: Stream, shim: Shim, device: HipDevice) -> None:
    before = shim.live()
    shim.fail("hipGraphInstantiateWithFlags", "hipErrorOutOfMemory")
    with raises("OutOfMemory"), capture(stream):
        pass
    assert shim.live() == before
