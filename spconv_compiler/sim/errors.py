"""What the simulator reports: a broken object, an instruction it does not know, a fault while running."""

from __future__ import annotations

from spconv_compiler.errors import CodegenError, SpconvError


class SimulatorError(SpconvError, RuntimeError):
    """Base of everything that the simulator raises on purpose."""


class ObjectError(SimulatorError):
    """The code object is damaged, of another machine, or lacks what is asked of it."""


class DecodeError(SimulatorError):
    """Bytes that are no instruction this simulator knows; the message holds the address and the bytes."""


class LaunchFault(SimulatorError):
    """A launch that the machine cannot start: arguments, sizes or registers that do not fit."""


class Fault(SimulatorError):
    """A kernel does what it must not do; the message names kernel, instruction, wave and lane."""


class UnsupportedError(CodegenError):
    """An instruction that the native engine does not carry; the numpy engine may."""


class SlowKernelWarning(UserWarning):
    """A kernel runs on the numpy engine because of one instruction."""
