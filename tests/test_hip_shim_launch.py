"""The rules of HIP that the shim keeps, for launches, devices, captures and graphs: every misuse has a name."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hip_harness import raises
from hip_raw import DEVICE_TO_HOST, GLOBAL, RELAXED, Raw, host

# Launches.


@pytest.mark.parametrize("size", [0, 8, 11, 17, 32])
def test_size_of_arguments(raw: Raw, size: int) -> None:
    """The kernel takes 12 bytes; 12 to 16 are right."""
    function = raw.function(raw.module())
    with raises("InvalidValue"):
        raw.launch(function, 0, raw.malloc(16384), size=size)
    raw.launch(function, 0, raw.malloc(16384), size=12)
    raw.launch(function, 0, raw.malloc(16384), size=16)
    raw.hip.call("hipDeviceSynchronize")


@pytest.mark.parametrize("tags", [(2, 1, 3), (1, 2, 0), (0, 0, 0)])
def test_marks_of_arguments(raw: Raw, tags: tuple[int, int, int]) -> None:
    with raises("InvalidValue"):
        raw.launch(raw.function(raw.module()), 0, raw.malloc(64), tags=tags)


def test_missing_arguments(raw: Raw) -> None:
    with raises("InvalidValue"):
        raw.hip.call("hipModuleLaunchKernel", raw.function(raw.module()), 1, 1, 1, 256, 1, 1, 0, 0, None, None)


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ({"grid": (0, 1, 1)}, "InvalidValue"),
        ({"block": (256, 0, 1)}, "InvalidConfiguration"),
        ({"block": (1025, 1, 1)}, "InvalidValue"),
        ({"block": (64, 64, 64)}, "InvalidValue"),
        ({"block": (512, 1, 1)}, "LaunchFailure"),
        ({"block": (128, 1, 1)}, "LaunchFailure"),
        ({"grid": (2**24, 1, 1)}, "InvalidConfiguration"),
        ({"shared": 160 * 1024 + 1}, "InvalidValue"),
    ],
    ids=str,
)
def test_sizes_of_launches(raw: Raw, sizes: dict[str, Any], error: str) -> None:
    with raises(error):
        raw.launch(raw.function(raw.module()), 0, raw.malloc(64), **sizes)


def test_missing_functions_and_images(raw: Raw) -> None:
    with raises("NotFound"):
        raw.hip.value(ctypes.c_void_p, "hipModuleGetFunction", raw.module(), b"other")
    with raises("InvalidValue"):
        raw.hip.value(ctypes.c_void_p, "hipModuleGetFunction", raw.module(), b"")
    junk = ctypes.create_string_buffer(b"no code", 256)
    with raises("InvalidImage"):
        raw.hip.value(ctypes.c_void_p, "hipModuleLoadData", ctypes.addressof(junk))
    with raises("InvalidValue"):
        raw.hip.value(ctypes.c_void_p, "hipModuleLoadData", None)


# Devices and captures.


def test_devices(raw: Raw) -> None:
    for call in ("hipSetDevice",):
        with raises("InvalidDevice"):
            raw.hip.call(call, 1)
    with raises("InvalidDevice"):
        raw.hip.value(ctypes.c_int, "hipDeviceGetAttribute", 88, 3)


def test_captures_that_are_refused(raw: Raw) -> None:
    stream = raw.stream()
    with raises("StreamCaptureUnsupported"):
        raw.hip.call("hipStreamBeginCapture", 0, RELAXED)
    with raises("InvalidValue"):
        raw.hip.call("hipStreamBeginCapture", stream, 3)
    with raises("IllegalState"):
        raw.end_capture(stream)


def test_a_global_capture_forbids_more_than_a_relaxed_one(raw: Raw) -> None:
    stream = raw.stream()
    raw.hip.call("hipStreamBeginCapture", stream, RELAXED)
    raw.hip.call("hipFree", raw.malloc(64))
    raw.end_capture(stream)
    raw.hip.call("hipStreamBeginCapture", stream, GLOBAL)
    with raises("StreamCaptureUnsupported"):
        raw.malloc(64)
    with raises("StreamCaptureInvalidated"):
        raw.end_capture(stream)


def test_the_default_stream_beside_a_blocking_capture(raw: Raw) -> None:
    pointer, stream = raw.malloc(64), raw.stream(blocking=True)
    raw.hip.call("hipStreamBeginCapture", stream, RELAXED)
    with raises("StreamCaptureImplicit"):
        raw.fill(pointer, 0, 0)
    with raises("StreamCaptureInvalidated"):
        raw.fill(pointer, 0, stream)
    with raises("StreamCaptureInvalidated"):
        raw.end_capture(stream)


def test_captures_do_not_merge_and_end_where_they_began(raw: Raw) -> None:
    first, second, third, event = raw.stream(), raw.stream(), raw.stream(), raw.event()
    for stream in (first, second):
        raw.hip.call("hipStreamBeginCapture", stream, RELAXED)
    raw.hip.call("hipEventRecord", event, first)
    raw.hip.call("hipStreamWaitEvent", third, event, 0)
    with raises("StreamCaptureUnmatched"):
        raw.end_capture(third)
    with raises("StreamCaptureMerge"):
        raw.hip.call("hipStreamWaitEvent", second, event, 0)
    for stream in (first, second):
        with raises("StreamCaptureInvalidated"):
            raw.end_capture(stream)


def test_graphs(raw: Raw) -> None:
    pointer, stream, (array, address) = raw.malloc(64), raw.stream(), host(9)
    raw.hip.call("hipStreamBeginCapture", stream, RELAXED)
    raw.fill(pointer, 1, stream)
    raw.copy(address, pointer, DEVICE_TO_HOST, stream)
    graph = raw.end_capture(stream)
    run = raw.make("hipGraphExecDestroy", "hipGraphInstantiateWithFlags", graph, 0)
    raw.hip.call("hipGraphDestroy", graph)
    with raises("InvalidValue"):
        raw.hip.value(ctypes.c_void_p, "hipGraphInstantiateWithFlags", graph, 0)
    raw.hip.call("hipGraphLaunch", run, stream)
    assert (array == 9).all()
    raw.hip.call("hipStreamSynchronize", stream)
    assert (array == 1).all()
    raw.hip.call("hipFree", pointer)
    raw.hip.call("hipGraphLaunch", run, stream)
    with raises("IllegalAddress"):
        raw.hip.call("hipStreamSynchronize", stream)
    raw.hip.call("hipGraphExecDestroy", run)
    with raises("InvalidValue"):
        raw.hip.call("hipGraphLaunch", run, stream)
