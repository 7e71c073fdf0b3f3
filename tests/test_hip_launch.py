"""Code objects, launches and devices through the HIP runtime on the shim, and input that is not fit for a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hip_harness import FILL, FILL_CHANNELS, Shim, code, raises

import spconv_compiler as sc
from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.hip import Stream
from spconv_compiler.runtime.hip_device import HipDevice
from spconv_compiler.runtime.hip_library import HipLibrary
from spconv_compiler.runtime.hip_module import Module, check_launch, pack_arguments
from spconv_compiler.sim.elf import Argument, CodeObject, Kernel


@functools.cache
def kernel_facts(name: str = FILL) -> Kernel:
    return CodeObject(code()).kernels[name]


# Launches.


# Rows that one workgroup of FILL covers: four channels a lane.
FILL_ROWS = 4 * 256 // FILL_CHANNELS


def test_launch(device: HipDevice, stream: Stream) -> None:
    """The second of two workgroups stops in the middle; what lies behind the rows stays."""
    rows, found = FILL_ROWS + 8, np.zeros((2 * FILL_ROWS, FILL_CHANNELS), np.int32)
    with device.load(code()) as module:
        buffer = device.allocate("rows", found.nbytes, stream.handle)
        device.fill(buffer, 0x11, stream.handle)
        device.launch(module, FILL, [2], 256, [buffer, rows], stream.handle)
        device.copy_out(found.ctypes.data, buffer, stream.handle)
        stream.synchronize()
    assert (found[:rows] == 0).all() and (found[rows:] == 0x11111111).all()


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ([0], 256, r"grid \[0\]; accepted: one to three sizes of at least 1"),
        ([1, 1, 1, 1], 256, r"grid \[1, 1, 1, 1\]; accepted"),
        ([1], 128, "128 lanes a workgroup; accepted: 256"),
        ([1], 2048, "2048 lanes a workgroup; accepted: 256"),
        ([2**24], 256, r"grid \[16777216\] of 256 lanes; accepted: at most 4294967295 lanes an axis"),
        ([1, 2**32], 256, "at most 4294967295 lanes an axis"),
    ],
)
def test_launches_beyond_the_limits(
    device: HipDevice, stream: Stream, grid: list[int], block: int, message: str
) -> None:
    with device.load(code()) as module:
        buffer = device.allocate("rows", 4096, stream.handle)
        with pytest.raises(LaunchError, match=f"kernel {FILL}: .*{message}"):
            device.launch(module, FILL, grid, block, [buffer, 4], stream.handle)


def with_facts(kernel: Kernel, **changes: Any) -> Kernel:
    """A kernel with other facts, of the descriptor too."""
    inner = {name: changes.pop(name) for name in ("lds_bytes", "kernarg_bytes") if name in changes}
    return dataclasses.replace(kernel, descriptor=dataclasses.replace(kernel.descriptor, **inner), **changes)


@pytest.mark.parametrize(("changes", "found"), [({"lds_bytes": 163_844}, "163844"), ({"max_lanes": 1025}, "1025")])
def test_kernels_beyond_the_device(
    hip: HipLibrary, changes: dict[str, int], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Module(hip, code()) as module:
        monkeypatch.setitem(module._kernels, FILL, with_facts(kernel_facts(), **changes))
        with pytest.raises(LaunchError, match=rf"kernel {FILL} needs .*{found}.*; accepted: 163840 and 1024"):
            module.function(FILL)


def test_a_kernel_without_a_fixed_block() -> None:
    free = with_facts(kernel_facts(), block=None, max_lanes=512)
    assert check_launch(free, [3, 2], 512) == (3, 2, 1)
    with pytest.raises(LaunchError, match="513 lanes a workgroup; accepted: at most 512"):
        check_launch(free, [1], 513)


def test_arguments_are_packed() -> None:
    """Offsets from the metadata, little endian, negative numbers modulo their size, padded to 16 bytes."""
    kernel = kernel_facts("scatter_rows_k32_h1x1x1_b256")
    values = [0x1122334455667788, 2**64 - 1, 7, -1, -(2**31), 2**32 - 1, 4, 5, 6, 8]
    packed = pack_arguments(kernel, values)
    assert len(packed) % 16 == 0 and len(packed) >= kernel.descriptor.kernarg_bytes
    assert struct.unpack_from("<QQI", packed) == (0x1122334455667788, 2**64 - 1, 7)
    assert struct.unpack_from("<iii", packed, 20) == (-1, -(2**31), -1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([1], "takes 2 arguments; given: 1"),
        ([1, 2, 3], "takes 2 arguments; given: 3"),
        ([1, 2**32], "argument 1 is 4294967296; accepted: 4 bytes"),
        ([1, -(2**31) - 1], "argument 1 is -2147483649; accepted: 4 bytes"),
        ([2**64, 1], "argument 0 is 18446744073709551616; accepted: 8 bytes"),
    ],
)
def test_arguments_that_do_not_fit(arguments: list[int], message: str) -> None:
    with pytest.raises(LaunchError, match=f"kernel {FILL}:? .*{message}"):
        pack_arguments(kernel_facts(), arguments)


def test_metadata_that_contradicts_itself() -> None:
    damaged = with_facts(kernel_facts(), arguments=(*kernel_facts().arguments, Argument(12, 8, "by_value")))
    with pytest.raises(LaunchError, match="argument 2 takes bytes 12 to 20 of 12 bytes of arguments"):
        pack_arguments(damaged, [1, 2, 3])


def test_a_module_that_was_closed(device: HipDevice, stream: Stream) -> None:
    module = device.load(code())
    buffer = device.allocate("rows", 4096, stream.handle)
    function = module.function(FILL)
    module.close()
    with pytest.raises(LaunchError, match="this Module has been closed"):
        function.launch([1], 256, [buffer.pointer, 4], stream.handle)


def test_a_function_keeps_its_module(device: HipDevice, stream: Stream) -> None:
    function = device.load(code()).function(FILL)
    gc.collect()
    found = np.full((FILL_ROWS, FILL_CHANNELS), 1, np.int32)
    buffer = device.allocate("rows", found.nbytes, stream.handle)
    function.launch([1], 256, [buffer.pointer, FILL_ROWS], stream.handle)
    device.copy_out(found.ctypes.data, buffer, stream.handle)
    stream.synchronize()
    assert not found.any()


# Code objects.


def elf_with(offset: int, form: str, value: int) -> bytes:
    data = bytearray(code())
    struct.pack_into(form, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda: b"", "truncated code object"),
        (lambda: b"MZ" + bytes(100), "no code object: the file begins with 4d 5a"),
        (lambda: code()[:63], "truncated code object: the ELF header"),
        (lambda: code()[: len(code()) // 2], "truncated code object"),
        (lambda: code()[:-1], "truncated code object"),
        (lambda: elf_with(18, "<H", 62), "ELF for machine 62; accepted: 224"),
        (lambda: elf_with(48, "<I", 0x4C), r"code object for GPU 0x4c; accepted: 0x4f \(gfx950\)"),
        (lambda: elf_with(4, "<B", 1), "ELF class 1"),
    ],
)
def test_code_that_is_no_code_object(hip: HipLibrary, damage: Callable[[], bytes], message: str, shim: Shim) -> None:
    """HIP reads the length from the bytes themselves, so that such bytes must not come to it."""
    shim.fail("hipModuleLoadData", "hipErrorInvalidImage")
    with pytest.raises(LaunchError, match=f"the kernel cannot be loaded: .*{message}"):
        Module(hip, damage())


def test_a_kernel_that_is_not_there(hip: HipLibrary) -> None:
    message = f"no kernel 'other'; it has: {', '.join(CodeObject(code()).kernels)}$"
    assert f" {FILL}, " in message
    with Module(hip, code()) as module, pytest.raises(LaunchError, match=message):
        module.function("other")


def test_code_that_hip_refuses(hip: HipLibrary, shim: Shim) -> None:
    shim.fail("hipModuleLoadData", "hipErrorNoBinaryForGpu")
    with raises("NoBinaryForGpu"):
        Module(hip, code())


# Devices.


def test_another_gpu_is_named(hip: HipLibrary, shim: Shim) -> None:
    shim.configure("gfx942:sramecc+:xnack-")
    with pytest.raises(LaunchError, match=r"GPU 0 is gfx942:sramecc\+:xnack-; the code is for gfx950"):
        HipDevice(hip, 0, "gfx950")
    with pytest.raises(LaunchError, match="GPU 0 is gfx942"):
        sc.load_conv(sc.CompileOptions((3, 3, 3), 16, 32, target="gfx950"))


def test_no_gpu(hip: HipLibrary, shim: Shim) -> None:
    shim.configure(devices=0)
    with pytest.raises(LaunchError, match=r"no AMD GPU: hipInit: hipErrorNoDevice \(100\).*target='gfx950-sim'"):
        HipDevice(hip, 0, "gfx950")


def test_a_gpu_that_is_not_there(hip: HipLibrary) -> None:
    with pytest.raises(LaunchError, match="no AMD GPU with number 1: HIP finds 1"):
        HipDevice(hip, 1, "gfx950")


def test_the_current_device_is_given_back(hip: HipLibrary, shim: Shim) -> None:
    shim.configure(devices=2)
    second = HipDevice(hip, 1, "gfx950")
    found = functools.partial(hip.value, ctypes.c_int, "hipGetDevice")
    with second.stream() as stream:
        assert found() == 1
        second.allocate("bytes", 16, stream)
    assert found() == 0
    with pytest.raises(KeyError), second.stream():
        raise KeyError
    assert found() == 0


@pytest.mark.parametrize("nbytes", [2**63, 2**64 + 16])
def test_sizes_beyond_any_memory(device: HipDevice, stream: Stream, nbytes: int) -> None:
    """The second would be 16 bytes where only 64 bits count."""
    with pytest.raises(LaunchError, match=f"{nbytes} bytes for grid on GPU 0: hipMalloc: hipErrorOutOfMemory"):
        device.allocate("grid", nbytes, stream.handle)
