"""The rules of HIP that the shim keeps, for memory, handles and order: every misuse has a name, and nothing happens
before it is waited for.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hip_harness import Shim, raises
from hip_raw import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE, Raw, host

# Memory.


def test_double_free(raw: Raw) -> None:
    pointer = raw.malloc(64)
    raw.hip.call("hipFree", pointer)
    with raises("InvalidValue"):
        raw.hip.call("hipFree", pointer)
    again = int(raw.hip.value(ctypes.c_void_p, "hipMallocAsync", 64, 0))
    raw.hip.call("hipFreeAsync", again, 0)
    with raises("InvalidValue"):
        raw.hip.call("hipFreeAsync", again, 0)
    with raises("InvalidValue"):
        raw.hip.call("hipFree", again)


@pytest.mark.parametrize("call", ["hipFree", "hipFreeAsync"])
def test_freeing_what_is_no_allocation(raw: Raw, call: str) -> None:
    array, address = host()
    inside = raw.malloc(64) + 16
    more = () if call == "hipFree" else (0,)
    for pointer in (address, inside, 4096):
        with raises("InvalidValue"):
            raw.hip.call(call, pointer, *more)
    raw.hip.call("hipFree", None)


def test_use_after_free(raw: Raw, shim: Shim) -> None:
    """Copies are refused; a kernel that was given the address fails when it runs."""
    pointer, stream, module = raw.malloc(64), raw.stream(), raw.module()
    array, address = host()
    raw.hip.call("hipFree", pointer)
    for arguments in ((pointer, address, HOST_TO_DEVICE), (address, pointer, DEVICE_TO_HOST)):
        with raises("InvalidValue"):
            raw.copy(*arguments, stream)
    with raises("InvalidValue"):
        raw.fill(pointer, 0, stream)
    raw.launch(raw.function(module), stream, pointer)
    with raises("IllegalAddress"):
        raw.hip.call("hipStreamSynchronize", stream)


def test_freed_in_another_stream(raw: Raw) -> None:
    """A free that another stream runs first takes the memory away from work that is queued already."""
    first, second = raw.stream(), raw.stream()
    pointer = int(raw.hip.value(ctypes.c_void_p, "hipMallocAsync", 64, first))
    raw.fill(pointer, 1, first)
    raw.hip.call("hipFreeAsync", pointer, second)
    with raises("InvalidValue"):
        raw.fill(pointer, 2, first)
    raw.hip.call("hipStreamSynchronize", second)
    with raises("IllegalAddress"):
        raw.hip.call("hipStreamSynchronize", first)


def test_free_waits_for_the_device(raw: Raw) -> None:
    pointer, stream = raw.malloc(64), raw.stream()
    array, address = host()
    raw.fill(pointer, 7, stream)
    raw.copy(address, pointer, DEVICE_TO_HOST, stream)
    raw.hip.call("hipFree", pointer)
    assert (array == 7).all()


@pytest.mark.parametrize("direction", [HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE])
@pytest.mark.parametrize(("target", "source"), [("host", "device"), ("device", "host"), ("host", "host")])
def test_directions_of_copies(raw: Raw, direction: int, target: str, source: str) -> None:
    array, address = host()
    places = {"host": address, "device": raw.malloc(64)}
    right = {HOST_TO_DEVICE: ("device", "host"), DEVICE_TO_HOST: ("host", "device")}.get(direction)
    if (target, source) == right:
        raw.copy(places[target], places[source], direction)
        return
    with raises("InvalidValue"):
        raw.copy(places[target], places[source], direction)


@pytest.mark.parametrize("direction", [-1, 0, 4, 17])
def test_unknown_directions(raw: Raw, direction: int) -> None:
    array, address = host()
    with raises("InvalidMemcpyDirection"):
        raw.copy(raw.malloc(64), address, direction)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 65), (1, 64), (64, 1), (-1, 2)])
def test_ranges_of_copies(raw: Raw, offset: int, nbytes: int) -> None:
    pointer = raw.malloc(64)
    array = np.zeros(128, np.uint8)
    with raises("InvalidValue"):
        raw.copy(pointer + offset, array.ctypes.data, HOST_TO_DEVICE, 0, nbytes)
    with raises("InvalidValue"):
        raw.copy(array.ctypes.data, pointer + offset, DEVICE_TO_HOST, 0, nbytes)
    with raises("InvalidValue"):
        raw.fill(pointer + offset, 0, 0, nbytes)


def test_parts_of_an_allocation_and_copies_on_the_device(raw: Raw) -> None:
    first, second, (array, address) = raw.malloc(64), raw.malloc(64), host()
    raw.fill(first, 1, 0)
    raw.fill(first + 16, 2, 0, 16)
    raw.copy(second, first, DEVICE_TO_DEVICE)
    raw.copy(address, second, DEVICE_TO_HOST)
    raw.hip.call("hipDeviceSynchronize")
    assert array.tolist() == [1] * 16 + [2] * 16 + [1] * 32


def test_memory_that_nobody_wrote_is_not_read(raw: Raw, shim: Shim) -> None:
    array, address = host()
    raw.copy(address, raw.malloc(64), DEVICE_TO_HOST)
    with raises("LaunchFailure"):
        raw.hip.call("hipStreamSynchronize", 0)
    assert "nobody wrote" in str(shim.faults[0])


# Handles.


@pytest.mark.parametrize("handle", [1, 2**40 + 8])
def test_unknown_handles(raw: Raw, handle: int) -> None:
    for call in ("hipStreamSynchronize", "hipStreamQuery", "hipStreamDestroy", "hipEventSynchronize", "hipEventQuery"):
        with raises("InvalidHandle"):
            raw.hip.call(call, handle)
    with raises("InvalidHandle"):
        raw.hip.call("hipModuleUnload", handle)
    with raises("InvalidHandle"):
        raw.launch(handle, 0, raw.malloc(64))
    for call in ("hipGraphDestroy", "hipGraphExecDestroy"):
        with raises("InvalidValue"):
            raw.hip.call(call, handle)


def test_handles_of_the_wrong_kind(raw: Raw) -> None:
    stream, event = raw.stream(), raw.event()
    for call, handle in (("hipStreamSynchronize", event), ("hipEventQuery", stream), ("hipModuleUnload", event)):
        with raises("InvalidHandle"):
            raw.hip.call(call, handle)


def test_destroyed_handles(raw: Raw) -> None:
    stream, event, module = raw.stream(), raw.event(), raw.module()
    function = raw.function(module)
    for call, handle in (("hipStreamDestroy", stream), ("hipEventDestroy", event), ("hipModuleUnload", module)):
        raw.hip.call(call, handle)
        with raises("InvalidHandle"):
            raw.hip.call(call, handle)
    with raises("InvalidHandle"):
        raw.hip.call("hipEventRecord", event, 0)
    with raises("InvalidHandle"):
        raw.hip.call("hipStreamWaitEvent", 0, event, 0)
    with raises("InvalidHandle"):
        raw.fill(raw.malloc(64), 0, stream)
    with raises("InvalidHandle"):
        raw.launch(function, 0, raw.malloc(64))
    with raises("InvalidHandle"):
        raw.function(module)


def test_a_module_unloaded_under_its_launch(raw: Raw) -> None:
    module, stream = raw.module(), raw.stream()
    raw.launch(raw.function(module), stream, raw.malloc(16384))
    raw.hip.call("hipModuleUnload", module)
    with raises("LaunchFailure"):
        raw.hip.call("hipStreamSynchronize", stream)


def test_work_in_a_destroyed_stream_is_lost(raw: Raw) -> None:
    """HIP promises nothing about it, so that nothing may be expected."""
    pointer, stream, other, (array, address) = raw.malloc(64), raw.stream(), raw.stream(), host(9)
    raw.fill(pointer, 1, stream)
    raw.copy(address, pointer, DEVICE_TO_HOST, stream)
    raw.hip.call("hipStreamDestroy", stream)
    raw.hip.call("hipDeviceSynchronize")
    assert (array == 9).all()
    raw.hip.call("hipStreamSynchronize", other)


# Order.


def test_nothing_runs_before_it_is_waited_for(raw: Raw) -> None:
    pointer, stream, (array, address) = raw.malloc(64), raw.stream(), host(9)
    raw.fill(pointer, 1, stream)
    raw.copy(address, pointer, DEVICE_TO_HOST, stream)
    assert (array == 9).all()
    raw.hip.call("hipStreamSynchronize", 0)
    assert (array == 9).all(), "the default stream does not wait for a stream that does not block"
    raw.hip.call("hipStreamSynchronize", stream)
    assert (array == 1).all()


def test_the_default_stream_and_blocking_streams_wait_for_each_other(raw: Raw) -> None:
    pointer, stream, (array, address) = raw.malloc(64), raw.stream(blocking=True), host(9)
    raw.fill(pointer, 1, 0)
    raw.copy(address, pointer, DEVICE_TO_HOST, stream)
    raw.hip.call("hipStreamSynchronize", stream)
    assert (array == 1).all()
    raw.fill(pointer, 2, stream)
    raw.copy(address, pointer, DEVICE_TO_HOST, 0)
    raw.hip.call("hipStreamSynchronize", 0)
    assert (array == 2).all()


def test_an_event_that_is_recorded_again_means_the_later_work(raw: Raw) -> None:
    pointer, stream, event, (array, address) = raw.malloc(64), raw.stream(), raw.event(), host(9)
    raw.fill(pointer, 1, stream)
    raw.hip.call("hipEventRecord", event, stream)
    raw.copy(address, pointer, DEVICE_TO_HOST, stream)
    raw.hip.call("hipEventRecord", event, stream)
    raw.hip.call("hipEventSynchronize", event)
    assert (array == 1).all()


def test_a_failure_reaches_who_waits_for_it(raw: Raw) -> None:
    """By way of an event too; once reported, the stream goes on."""
    first, second, event = raw.stream(), raw.stream(), raw.event()
    array, address = host()
    raw.copy(address, raw.malloc(64), DEVICE_TO_HOST, first)
    raw.hip.call("hipEventRecord", event, first)
    raw.hip.call("hipStreamWaitEvent", second, event, 0)
    with raises("LaunchFailure"):
        raw.hip.call("hipStreamSynchronize", second)
    with raises("LaunchFailure"):
        raw.hip.call("hipStreamSynchronize", first)
    raw.hip.call("hipStreamSynchronize", first)
