"""The target that spconv-run runs on, as its modes see it."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass

from spconv_compiler import env
from spconv_compiler.driver import thread_count
from spconv_compiler.targets import CpuTarget, GpuTarget, get_target
from spconv_compiler.tools.console import count, progress_bar


@dataclass(frozen=True)
class Target:
    """A resolved target.

    Attributes:
        name: of the target; simulated: whether it is the simulator; cpu: whether it is this host's cores.
    """

    name: str
    simulated: bool
    cpu: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Target:
        """The one that --target or the environment names; InputError if there is none of that name."""
        found = get_target(arguments.target or env.TARGET.get())
        simulated = isinstance(found, GpuTarget) and found.simulated
        return cls(found.name, simulated, isinstance(found, CpuTarget))

    def prepare(self) -> None:
        """Builds what the simulator needs once on a machine, under a bar of its own."""
        if not self.simulated:
            return
        from spconv_compiler.runtime.sim import prepare

        with contextlib.ExitStack() as stack:
            prepare(lambda steps: stack.enter_context(progress_bar(steps)))

    @property
    def clock(self) -> str:
        """What milliseconds are of, where that must be said."""
        return " of the simulator on this host, not of a GPU" if self.simulated else ""

    def __str__(self) -> str:
        return f"{self.name}, {count(thread_count(), 'thread')}" if self.cpu else self.name
