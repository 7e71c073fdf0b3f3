"""The kernels of a network, compiled side by side."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("torch")

from spconv_compiler.compiler import conv_options, is_compiled
from spconv_compiler.network import kernels, worker


@pytest.mark.parametrize("starts", [True, False])
def test_no_process_can_be_started(
    starts: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then this process compiles all kernels; a worker is a help and no condition."""
    caplog.set_level(logging.WARNING, "spconv_compiler")
    monkeypatch.setattr(kernels, "_helpers", lambda count: 1)
    if not starts:
        monkeypatch.setattr(worker.sys, "executable", "/nowhere/python")
    wanted = [conv_options(1, 5 + starts, width, 32, target="cpu") for width in (3, 5, 7)]
    assert kernels.compile_all(wanted) == len(wanted)
    assert all(is_compiled(one) for one in wanted)
    assert ("no process beside this one compiles kernels" in caplog.text) is not starts
