"""The classes of errors and the text that users see."""

from __future__ import annotations

import inspect
import re

import pytest

import spconv_compiler as sc
from spconv_compiler import errors
from spconv_compiler.errors import CompileError, Rejection, ScheduleError


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("InputError", (errors.SpconvError, ValueError)),
        ("ToolchainError", (errors.SpconvError, RuntimeError)),
        ("LaunchError", (errors.SpconvError, RuntimeError)),
        ("CompileError", (errors.SpconvError,)),
        ("VerifyError", (CompileError,)),
        ("PassError", (CompileError,)),
        ("ScheduleError", (CompileError,)),
        ("CodegenError", (CompileError,)),
        ("CacheWarning", (UserWarning,)),
    ],
)
def test_hierarchy(name: str, bases: tuple[type, ...]) -> None:
    assert issubclass(getattr(errors, name), bases[0]) and all(base in getattr(errors, name).__mro__ for base in bases)


def test_every_error_can_be_caught_at_once_and_is_explained() -> None:
    for _, class_ in inspect.getmembers(errors, inspect.isclass):
        if issubclass(class_, Exception) and not issubclass(class_, Warning):
            assert issubclass(class_, errors.SpconvError) and inspect.getdoc(class_)


def test_what_public_functions_raise_is_public() -> None:
    stated: set[str] = set()
    for name in sc.__all__:
        raises = (inspect.getdoc(getattr(sc, name)) or "").partition("Raises:")[2]
        stated |= set(re.findall(r"\b[A-Z]\w+Error\b", raises))
    assert {"InputError", "CompileError", "LaunchError", "ToolchainError"} <= stated <= set(sc.__all__)
    assert all(getattr(sc, name) is getattr(errors, name) for name in stated)


def test_text_of_a_compile_error() -> None:
    assert str(CompileError("it failed")) == "it failed"
    error = CompileError(
        "it failed",
        op='%0 = "spconv.map"',
        location="net.py:7:3",
        pass_name="cse",
        level="gpu",
        notes=("use 3", "or 5"),
    )
    assert str(error).splitlines() == [
        "net.py:7:3: it failed",
        "  in pass: cse",
        "  at level: gpu",
        '  op: %0 = "spconv.map"',
        "  note: use 3",
        "  note: or 5",
    ]


def test_context_that_is_added_later_is_shown() -> None:
    """The runner knows the pass; the place that raises may not."""
    error = CompileError("it failed")
    error.pass_name = "cse"
    assert str(error) == "it failed\n  in pass: cse"


def test_a_schedule_error_lists_every_rejection() -> None:
    rejections = (Rejection("a", "too wide"), Rejection("b", "no f32"))
    error = ScheduleError("no schedule", rejections, location="-:1:1", pass_name="choose-schedule")
    assert error.rejections == rejections
    assert str(error).splitlines() == [
        "-:1:1: no schedule",
        "  in pass: choose-schedule",
        "  note: schedule 'a': too wide",
        "  note: schedule 'b': no f32",
    ]
