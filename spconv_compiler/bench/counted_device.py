"""A simulated GPU that counts: launches with their counters and modelled times, and what the host reads of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spconv_compiler.bench import sim_layer
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.runtime.sim import SimDevice
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.interpreter import BUDGET
from spconv_compiler.sim.watched import WatchedLaunch, WatchedMachine


class CountedDevice(SimDevice):
    """A device that the driver's kernels run on.

    Args:
        native: the native engine, else numpy's. sample: watch every so many workgroups.

    Attributes:
        reads: copies from the device to the host, so far.
    """

    def __init__(self, native: bool, sample: int) -> None:
        super().__init__(self._machine)
        # One thread: how long a look-back waits does not depend on this host.
        self._make, self._sample = sim_layer.engine(native, 1), sample
        self._watched: list[WatchedMachine] = []
        self.reads = 0

    def _machine(self, kernels: Mapping[str, Kernel]) -> WatchedMachine:
        machine = self._make(kernels, BUDGET)
        machine.memory = self.memory
        self._watched.append(WatchedMachine(machine, self._sample))
        return self._watched[-1]

    def copy_out(self, target: int, buffer: Buffer, stream: None = None, nbytes: int | None = None) -> None:
        self.reads += 1
        super().copy_out(target, buffer, stream, nbytes)

    def taken(self) -> list[WatchedLaunch]:
        """The launches since the last call, in order of their code objects."""
        found: list[Any] = [launch for machine in self._watched for launch in machine.launches]
        for machine in self._watched:
            machine.launches.clear()
        return found
