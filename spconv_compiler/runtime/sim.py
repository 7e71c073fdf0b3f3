"""The simulator as a device: the executor that drives a GPU through HIP drives it too (see device.py).

Copies and launches are done when they are called. One call runs at a time; the engine has threads of its own.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spconv_compiler import env
from spconv_compiler.arrays import bytes_at
from spconv_compiler.errors import LaunchError, ToolchainError
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.errors import LaunchFault
from spconv_compiler.sim.interpreter import Counts, Machine
from spconv_compiler.sim.memory import Allocation, Memory

# Code objects whose decoded kernels are kept.
_KEPT_MACHINES = 64


class SimBuffer:
    """Memory of the simulator."""

    def __init__(self, allocation: Allocation, freed: deque[Allocation]) -> None:
        self.allocation = allocation
        self.pointer, self.nbytes = allocation.address, allocation.size
        # Collection can happen in the middle of anything: the memory takes it back when it is asked for more.
        weakref.finalize(self, freed.append, allocation).atexit = False


class SimDevice:
    """One simulated GPU: a memory, and a machine for each code object.

    Errors of kernels (sim/errors.py) are raised by the launch; the memory stays usable.

    Args:
        engine: makes a machine from kernels, as sim/interpreter.py's Machine does; by default the native machine.
            It runs on one thread, so that no race goes unseen and sums of floats come out the same in every run,
            unless SPCONV_NUM_THREADS asks for more when a code object is loaded.

    Attributes:
        memory: of all code objects. watch: told of every launch that has ended, the kernel's name and its counts.
    """

    name = "gfx950 (simulated)"

    def __init__(self, engine: Callable[[Mapping[str, Kernel]], Any] | None = None) -> None:
        self._engine = engine or _fastest
        self.memory = Memory()
        self.watch: Callable[[str, Counts], None] | None = None
        self._machines: dict[bytes, Any] = {}
        self._freed: deque[Allocation] = deque()
        # Re-entrant: a call holds it from its first allocation to its end.
        self._lock = threading.RLock()

    def load(self, code: bytes) -> Any:
        with self._lock:
            # Decoding takes longer than many launches; dictionaries keep the order in which keys came.
            machine = self._machines.pop(code, None) or self._engine(CodeObject(code).kernels)
            self._machines[code] = machine
            if len(self._machines) > _KEPT_MACHINES:
                del self._machines[next(iter(self._machines))]
            machine.memory = self.memory
            return machine

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        with self._lock:
            yield None

    def allocate(self, name: str, nbytes: int, stream: None = None, *, writable: bool = True) -> SimBuffer:
        with self._lock:
            self._take_back()
            try:
                return SimBuffer(self.memory.allocate(name, nbytes, writable), self._freed)
            except LaunchFault as error:
                raise LaunchError(f"out of memory on the simulator: {error}") from error

    def _take_back(self) -> None:
        while self._freed:
            self.memory.free(self._freed.popleft())

    def live(self) -> list[str]:
        """Names of the buffers that are allocated."""
        with self._lock:
            self._take_back()
            return [item.name for item in self.memory.allocations]

    def copy_in(self, buffer: Buffer, source: int, stream: None = None) -> None:
        assert isinstance(buffer, SimBuffer)
        with self._lock:
            self.memory.copy_in(buffer.pointer, bytes_at(source, buffer.nbytes))

    def copy_out(self, target: int, buffer: Buffer, stream: None = None, nbytes: int | None = None) -> None:
        assert isinstance(buffer, SimBuffer)
        size = buffer.nbytes if nbytes is None else nbytes
        with self._lock:
            bytes_at(target, size)[:] = self.memory.copy_out(buffer.pointer, size)

    def launch(
        self,
        module: Any,
        kernel: str,
        grid: Sequence[int],
        block: int,
        arguments: Sequence[Buffer | int],
        stream: None = None,
    ) -> None:
        values = [value.allocation if isinstance(value, SimBuffer) else value for value in arguments]
        with self._lock:
            counts = module.launch(kernel, grid, block, values)
        if self.watch is not None:
            self.watch(kernel, counts)

    def synchronize(self, stream: None = None) -> None:
        """Nothing: all work is done when it is asked for."""


def _fastest(kernels: Mapping[str, Kernel]) -> Any:
    """The native machine, or where this host cannot build or run it, numpy's."""
    # Imported here: with it come the parts of MLIR.
    from spconv_compiler.sim.native.machine import NativeMachine

    try:
        return NativeMachine(kernels, threads=env.NUM_THREADS.get() if env.NUM_THREADS.is_set() else 1)
    except ToolchainError as error:
        logging.getLogger("spconv_compiler").warning("the simulator is slow here: %s", error)
        return Machine(kernels)


def prepare(begin: Callable[[int], Callable[[str], None]]) -> None:
    """Builds the native machine's handlers unless they are on disk already.

    Args:
        begin: called with the number of steps when there is something to build; gives what is called before each.
    """
    from spconv_compiler.sim.native import library

    with contextlib.suppress(ToolchainError):  # the first use says it
        library.load(library.build_of(checks=True), begin)


@functools.lru_cache(maxsize=1)
def sim_device() -> SimDevice:
    """The simulated GPU of this process."""
    return SimDevice()
