"""Tile registers are the system's to give: what happens where it does not, and in processes that come from others."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import subprocess
import sys

import pytest
import torch
from tile_harness import AMX, needs_tiles

import spconv_compiler as sc
from spconv_compiler import tile_grant, toolchain
from spconv_compiler.errors import LaunchError
from spconv_compiler.targets import get_target

COORDS = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 3, 4]], dtype=torch.int32)
FEATURES = torch.arange(48).reshape(3, 16).bfloat16()
WEIGHT = torch.ones(4, 3, 3, 3, 16).bfloat16()

CONVOLVE = """
import sys, torch, spconv_compiler as sc
from spconv_compiler.targets import get_target
coords = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 3, 4]], dtype=torch.int32)
features = torch.arange(48).reshape(3, 16).bfloat16()
out = sc.subm_conv3d(coords, features, torch.ones(4, 3, 3, 3, 16).bfloat16(), target=TARGET)
assert torch.equal(out.float(), features.float().sum().bfloat16().float().expand(3, 4)), out
print(get_target("cpu").name)
"""

SMALL_STACK = """
import ctypes

class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

# Enough for the state of all vector registers, and not for that of tiles, which is 8 KiB itself.
memory = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(stack), None) == 0
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_grant, "tile_refusal", lambda: "the system says no")
    monkeypatch.setattr(toolchain, "host_cpu_features", lambda: frozenset(AMX.requires))


def test_cpu_is_another_level_where_tiles_are_refused(refused: None) -> None:
    # Nor the dot product of such processors, which is slower than a multiply-add.
    assert get_target("cpu").name == get_target("auto").name == "x86-64-v4"


def test_tiles_that_are_refused_cannot_be_asked_for(refused: None) -> None:
    message = "this process cannot run x86-64-v4-amx code: its tile registers are refused: the system says no"
    with pytest.raises(LaunchError, match=message):
        sc.subm_conv3d(COORDS, FEATURES, WEIGHT, target=AMX.name)
    assert sc.compile_conv(3, 16, 16, dtype="bf16", target=AMX.name).object


@pytest.mark.skipif(platform.machine() != "x86_64" or not sys.platform.startswith("linux"), reason="asks Linux on x86")
def test_a_failure_of_the_request_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fails(system_call: int) -> int:
        asked.append(system_call)
        return errno.ENOSPC

    monkeypatch.setattr(tile_grant, "_request", fails)
    found = tile_grant.tile_refusal.__wrapped__()
    assert found == f"arch_prctl(ARCH_REQ_XCOMP_PERM) fails with ENOSPC: {os.strerror(errno.ENOSPC)}"
    assert asked == [158]


def test_other_machines_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_grant.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(tile_grant, "_request", lambda system_call: pytest.fail("it was asked"))
    assert "aarch64 has no request" in str(tile_grant.tile_refusal.__wrapped__())


@needs_tiles
def test_the_request_asks_for_tile_data() -> None:
    """What the system has granted, as it says itself (ARCH_GET_XCOMP_PERM)."""
    assert tile_grant.tile_refusal() is None
    granted = ctypes.c_uint64()
    assert ctypes.CDLL(None).syscall(ctypes.c_long(158), ctypes.c_long(0x1022), ctypes.byref(granted)) == 0
    assert granted.value >> 18 & 1


@needs_tiles
def test_a_small_signal_stack_keeps_tiles_away() -> None:
    """The system refuses them then; `cpu` runs without, and asking for them by name is an error."""
    assert run(SMALL_STACK + CONVOLVE.replace("TARGET", '"cpu"')) == "x86-64-v4"
    failing = CONVOLVE.replace("TARGET", f'"{AMX.name}"').replace("\nout = ", "\ntry:\n  out = ", 1)
    failing = failing.split("assert")[0] + "except sc.LaunchError as error:\n  print(error)"
    assert "registers are refused: arch_prctl(ARCH_REQ_XCOMP_PERM) fails with ENOSPC" in run(SMALL_STACK + failing)


@needs_tiles
def test_every_program_asks_for_itself() -> None:
    """The second finds the kernel on disk, and still has to ask before it runs."""
    for _ in range(2):
        assert run(CONVOLVE.replace("TARGET", f'"{AMX.name}"')) == AMX.name


@needs_tiles
def test_forks_and_threads_have_what_their_process_was_granted() -> None:
    """A thread that was there before the request, and a fork after it."""
    code = """
import os, threading
go, results = threading.Event(), []
def convolve():
    go.wait()
    exec(CODE, {})
    results.append(True)
early = threading.Thread(target=convolve)
early.start()
exec(CODE, {})
go.set()
early.join()
assert results
child = os.fork()
if child == 0:
    exec(CODE, {})
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    source = CONVOLVE.replace("TARGET", f'"{AMX.name}"')
    run(f"CODE = {source!r}\n{code}")


def test_importing_asks_for_nothing() -> None:
    code = """
import sys
import spconv_compiler, spconv_compiler.targets
assert "spconv_compiler.tile_grant" not in sys.modules
from spconv_compiler.targets import get_target
get_target("x86-64-v4-amx")
assert "spconv_compiler.tile_grant" not in sys.modules
"""
    run(code)
