"""The HIP shim (tests/hip_shim) as tests use it: built with the system's compiler, its work done by the simulator."""

from __future__ import annotations

import ctypes
import functools
import pathlib
import shutil
import struct
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from spconv_compiler.arrays import bytes_at
from spconv_compiler.compiler import compile_conv
from spconv_compiler.runtime.hip_library import HipError
from spconv_compiler.runtime.owned import uncollected
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.errors import ObjectError, SimulatorError
from spconv_compiler.sim.memory import Allocation, Memory
from spconv_compiler.sim.native.machine import NativeMachine

SOURCES = pathlib.Path(__file__).resolve().parent / "hip_shim"
# As shim.h has them.
CODES = {
    "hipErrorOutOfMemory": 2,
    "hipErrorNoDevice": 100,
    "hipErrorInvalidImage": 200,
    "hipErrorNoBinaryForGpu": 209,
    "hipErrorNotFound": 500,
    "hipErrorIllegalAddress": 700,
    "hipErrorLaunchFailure": 719,
}
KINDS = {"streams": 1, "events": 2, "modules": 3, "graphs": 5, "executables": 6}
CHIP = "gfx950:sramecc+:xnack-"
# A kernel of the code object that `code` gives: it writes zeros to rows of f32, given their address and their number.
FILL = "fill_rows_32"
FILL_CHANNELS = 32


@functools.cache
def code() -> bytes:
    """The code object of a small convolution; of a schedule with FILL among its kernels."""
    return compile_conv(3, 16, 32, FILL_CHANNELS, dtype="bf16", target="gfx950", schedule="pairs_m16").object


def raises(error: str) -> Any:
    """Expects a HipError of that name, as in raises("InvalidValue")."""
    return pytest.raises(HipError, match=rf": hipError{error} \(\d+\): \w+")


def build(folder: pathlib.Path) -> pathlib.Path:
    """The shim, as folder/libamdhip64.so.

    A link: what the process maps has another name, so that nothing takes it for a HIP runtime by itself.

    Raises:
        FileNotFoundError: this system has no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("no C compiler: none of cc, gcc, clang")
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    built = folder / "shim.so"
    files = map(str, sorted(SOURCES.glob("*.c")))
    subprocess.run([compiler, *flags, "-shared", "-fPIC", "-o", str(built), *files, "-lpthread"], check=True)
    link = folder / "libamdhip64.so"
    link.symlink_to(built.name)
    return link


class _Limits(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("kernarg_bytes", "max_lanes", "lds_bytes", "block")]


_address, _bytes = ctypes.c_size_t, ctypes.c_size_t
_KINDS = {
    "allocate": (_bytes, ctypes.POINTER(_address)),
    "release": (_address,),
    "copy_in": (_address, _address, _bytes),
    "copy_out": (_address, _address, _bytes),
    "fill": (_address, ctypes.c_int, _bytes),
    "load": (_address, _bytes, ctypes.POINTER(ctypes.c_int)),
    "find": (ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(_Limits)),
    "launch": (ctypes.c_int, ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32), _address),
}
_TYPES = {name: ctypes.CFUNCTYPE(ctypes.c_int, *kinds) for name, kinds in _KINDS.items()}


class _Callbacks(ctypes.Structure):
    _fields_ = list(_TYPES.items())


class Shim:
    """A loaded shim.

    Attributes:
        path: of the library, for SPCONV_HIP.
        faults: what the simulator had to say about kernels and copies since `faults` was cleared last.
        launched: names of the kernels that have run.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.shim_bytes.restype = ctypes.c_size_t
        self.library.shim_limit_memory.argtypes = [ctypes.c_size_t]
        self.faults: list[SimulatorError] = []
        self.launched: list[str] = []
        self._memory = Memory()
        self._machines: dict[bytes, NativeMachine] = {}
        self._modules: list[tuple[NativeMachine, dict[str, Kernel]]] = []
        self._functions: list[tuple[NativeMachine, Kernel]] = []
        # The library keeps the addresses of these.
        self._callbacks = _Callbacks(*(kind(self._guarded(name)) for name, kind in _TYPES.items()))
        self.library.shim_register(ctypes.byref(self._callbacks))

    def _guarded(self, name: str) -> Callable[..., int]:
        """A method as a callback: an error of the simulator becomes HIP's."""
        method: Callable[..., int | None] = getattr(self, f"_{name}")

        def callback(*arguments: Any) -> int:
            try:
                # A collection would call the shim again, which is at work, and free memory in the middle of a launch.
                with uncollected():
                    return method(*arguments) or 0
            except SimulatorError as error:
                self.faults.append(error)
                return CODES["hipErrorLaunchFailure"]

        return callback

    # What tests ask.

    def reset(self) -> None:
        """As it was at first, apart from what lives."""
        self.library.shim_fail_no_more()
        self.library.shim_configure(CHIP.encode(), 1, 1)
        self.library.shim_limit_memory(1 << 40)
        self.faults.clear()
        self.launched.clear()

    def configure(self, chip: str = CHIP, devices: int = 1, pools: bool = True) -> None:
        """What the system looks like."""
        self.library.shim_configure(chip.encode(), devices, int(pools))

    def fail(self, call: str, error: str, after: int = 0, times: int = 1) -> None:
        """After `after` more calls of a function, `times` calls of it fail."""
        assert self.library.shim_fail(call.encode(), after, times, CODES[error]) == 0

    def limit_memory(self, nbytes: int) -> None:
        """The bytes that can be allocated."""
        self.library.shim_limit_memory(nbytes)

    def pending(self) -> int:
        """Pieces of work that are queued in streams and have not run."""
        return int(self.library.shim_pending())

    def live(self) -> dict[str, int]:
        """Handles that are not released, by kind, and bytes of memory; kinds without any are left out."""
        self.library.hipDeviceSynchronize()
        counts = {name: int(self.library.shim_live(kind)) for name, kind in KINDS.items()}
        counts["bytes"] = int(self.library.shim_bytes())
        return {name: count for name, count in counts.items() if count}

    # The simulator's side.

    def _allocate(self, size: int, address: Any) -> None:
        address[0] = self._memory.allocate("device memory", size).address

    def _release(self, address: int) -> None:
        found = self._memory.find(address)
        assert found is not None
        self._memory.free(found)

    def _copy_in(self, target: int, source: int, size: int) -> None:
        self._memory.copy_in(target, bytes_at(source, size))

    def _copy_out(self, target: int, source: int, size: int) -> None:
        bytes_at(target, size)[:] = self._memory.copy_out(source, size)

    def _fill(self, target: int, value: int, size: int) -> None:
        self._memory.fill(target, value, size)

    def _load(self, image: int, size: int, number: Any) -> int | None:
        code = bytes_at(image, size).tobytes()
        try:
            kernels = CodeObject(code).kernels
        except ObjectError as error:
            foreign = "code object for GPU" in str(error)
            return CODES["hipErrorNoBinaryForGpu" if foreign else "hipErrorInvalidImage"]
        # Decoding takes longer than most tests: a code object that comes again is known.
        if code not in self._machines:
            self._machines[code] = NativeMachine(kernels)
            self._machines[code].memory = self._memory
        machine = self._machines[code]
        number[0] = len(self._modules)
        self._modules.append((machine, kernels))
        return None

    def _find(self, module: int, name: bytes, number: Any, limits: Any) -> int | None:
        machine, kernels = self._modules[module]
        kernel = kernels.get(name.decode())
        if kernel is None:
            return CODES["hipErrorNotFound"]
        number[0] = len(self._functions)
        self._functions.append((machine, kernel))
        descriptor = kernel.descriptor
        block = kernel.block[0] if kernel.block else 0
        limits[0] = _Limits(descriptor.kernarg_bytes, kernel.max_lanes, descriptor.lds_bytes, block)
        return None

    def _launch(self, function: int, grid: Any, block: Any, arguments: int) -> int | None:
        machine, kernel = self._functions[function]
        packed = bytes_at(arguments, kernel.descriptor.kernarg_bytes).tobytes()
        values: list[int | Allocation] = []
        for slot in kernel.arguments:
            (value,) = struct.unpack_from("<Q" if slot.size == 8 else "<I", packed, slot.offset)
            if slot.kind != "global_buffer":
                values.append(value)
                continue
            inside = self._memory.find(value)
            if inside is None:
                return CODES["hipErrorIllegalAddress"]
            values.append(inside if inside.address == value else Allocation(inside.name, value, 0))
        machine.launch(kernel.name, grid[:3], block[0], values)
        self.launched.append(kernel.name)
        return None
