"""The native machine: kernels of a code object run by machine code for this host, with every check or with none.

It has the interface of interpreter.Machine. A launch is one call per thread; threads share the list of workgroups and
have records, contexts and local memory of their own. With two threads a race may go unseen and float atomics add in
any order: verdicts come from one thread.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spconv_compiler.sim.elf import Kernel, find_kernel
from spconv_compiler.sim.errors import Fault, LaunchFault, SlowKernelWarning, UnsupportedError
from spconv_compiler.sim.interpreter import BUDGET, Counts, Machine, check_launch, pack_arguments
from spconv_compiler.sim.listing import placed
from spconv_compiler.sim.machine import Observer
from spconv_compiler.sim.memory import Allocation, Memory
from spconv_compiler.sim.native import layout, library
from spconv_compiler.sim.native.launch import Settings, Shared, Thread, run_all
from spconv_compiler.sim.native.program import NativeProgram
from spconv_compiler.sim.static_checks import check

WINDOW = 64
SLICE_BRANCHES = 256
_KERNARG_ALIGNMENT = 16


class NativeMachine:
    """The kernels of a code object and one device memory.

    Args:
        budget: wave instructions that a launch may take. threads: of this process, for one launch.
        checks: look for undefined values, accesses that are not allowed, and races.
        window: workgroups that a thread keeps resident: a workgroup may wait for any of them.
        slice_branches: taken branches after which a workgroup lets the others of the window go on.
        begin: see library.load: progress of the first build.

    Attributes:
        observer: is told of every memory instruction (machine.Observer), or None.
    """

    def __init__(
        self,
        kernels: Mapping[str, Kernel],
        budget: int = BUDGET,
        *,
        threads: int = 1,
        checks: bool = True,
        window: int = WINDOW,
        slice_branches: int = SLICE_BRANCHES,
        begin: Callable[[int], library.Progress] | None = None,
    ) -> None:
        if threads < 1 or window < 1 or slice_branches < 1:
            raise LaunchFault(f"threads {threads}, window {window}, slice {slice_branches}; accepted: 1 or more each")
        self.kernels = kernels
        self.memory = Memory()
        self.budget, self.checks = budget, checks
        self.observer: Observer | None = None
        self._settings = (threads, window, slice_branches)
        self._programs: dict[str, NativeProgram] = {}
        self._handlers: dict[tuple[str, bool], Mapping[str, int]] = {}
        self._kept: list[library.Library] = []
        self._interpreter: Machine | None = None
        self._interpreted: set[str] = set()
        self._library = library.load(library.build_of(checks), begin=begin)

    def program(self, name: str) -> NativeProgram:
        """The decoded kernel.

        Raises:
            ObjectError, DecodeError: the code object is damaged. Fault: a static check fails.
            UnsupportedError: an instruction has no handler here.
        """
        if name not in self._programs:
            program = NativeProgram(find_kernel(self.kernels, name))
            violations = check(program.instructions)
            if violations:
                fault = Fault(f"{name}: {len(violations)} violations, the first at {violations[0]}")
                raise placed(fault, name, program.instructions, violations[0].instruction.address)
            self._programs[name] = program
        return self._programs[name]

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: int,
        arguments: Sequence[int | Allocation],
        order: Sequence[int] | None = None,
    ) -> Counts:
        """Runs a kernel to its end: see interpreter.Machine.launch.

        A kernel with an instruction that has no handler runs on the numpy engine, with a SlowKernelWarning.
        """
        try:
            program = self.program(name)
            check_launch(program.kernel, grid, block)
            addresses = self._bound(name, program, traced=self.observer is not None)
        except UnsupportedError as error:
            return self._interpret(error, name, grid, block, arguments, order)
        packed = pack_arguments(program.kernel, arguments)
        size = max(1, -(-len(packed) // _KERNARG_ALIGNMENT)) * _KERNARG_ALIGNMENT
        kernarg = self.memory.allocate(f"arguments of {name}", size, writable=False)
        try:
            self.memory.write_array(kernarg, np.frombuffer(packed, np.uint8))
            self.memory.begin_launch(-(-block // layout.LANES), checks=self.checks)
            sizes = (*grid, *[1] * (3 - len(grid)))
            groups = np.arange(int(np.prod(sizes))) if order is None else np.asarray(order, np.int64)
            shared = Shared(self.memory, program, addresses, sizes, block, kernarg.address, groups, self.observer)
            settings = Settings(self.budget, *self._settings)
            threads = [Thread(shared, settings) for _ in range(settings.threads)]
            run_all([functools.partial(thread.run, self._library) for thread in threads])
            self.memory.fences.clock = int(shared.words[4])
            self.memory.next_segment = min(int(shared.words[1]), layout.MOST_SEGMENTS)
            counts = self._counts(program, threads)
        finally:
            self.memory.free(kernarg)
        if not self.checks:
            for value in arguments:
                if isinstance(value, Allocation) and value.writable:
                    self.memory.assume_initialised(value)
        return counts

    def _interpret(self, reason: UnsupportedError, name: str, *launch: Any) -> Counts:
        """Runs a kernel on the numpy engine, on the same memory."""
        if self._interpreter is None:
            self._interpreter = Machine(self.kernels, self.budget, self.memory)
        if name not in self._interpreted:
            self._interpreted.add(name)
            text = f"{name} runs on the numpy engine, which is some hundred times slower: {reason}"
            warnings.warn(text, SlowKernelWarning, stacklevel=3)
        self._interpreter.observer = self.observer
        return self._interpreter.launch(name, *launch)

    def _bound(self, name: str, program: NativeProgram, *, traced: bool) -> Mapping[str, int]:
        """Addresses of the handlers of a kernel; what the library does not have is compiled now."""
        found = self._handlers.get((name, traced))
        if found is None:
            found = self._library.addresses
            missing = program.missing(found, traced=traced)
            if missing:
                more = library.load_more(library.build_of(self.checks, traced), missing)
                self._kept.append(more)
                found = {**found, **more.addresses}
            self._handlers[name, traced] = found
        return found

    def _counts(self, program: NativeProgram, threads: Sequence[Thread]) -> Counts:
        """Counts of a launch; raises the first error of its threads."""
        for thread in threads:
            error = thread.error()
            if error is not None:
                raise error
        total = np.sum([thread.counts() for thread in threads], axis=0)
        instructions = int(total.sum())
        if instructions > self.budget:
            raise Fault(f"{program.kernel.name}: more than {self.budget} instructions: an endless loop?")
        waves = sum(thread.word(layout.FINISHED) * thread.word(layout.GROUP_WAVES) for thread in threads)
        places = [item.address for item in program.instructions]
        by_address = {place: int(count) for place, count in zip(places, total, strict=True) if count}
        return Counts(waves, instructions, by_address)
