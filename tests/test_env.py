"""Environment variables: defaults, parsing, errors, and that nothing else reads the environment."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spconv_compiler import env
from spconv_compiler.errors import InputError

REPOSITORY = Path(__file__).resolve().parent.parent

GOOD = [
    (env.CACHE, "on", True),
    (env.CACHE, "off", False),
    (env.CACHE, "FALSE", False),
    (env.CACHE, "1", True),
    (env.CACHE_DIR, "/tmp/a b", Path("/tmp/a b")),
    (env.CACHE_MAX_MB, "7", 7),
    (env.LLD, "/usr/bin/ld.lld-19", Path("/usr/bin/ld.lld-19")),
    (env.TARGET, "gfx950", "gfx950"),
    (env.DUMP_DIR, "dump", Path("dump")),
    (env.PRINT_AFTER, "all", "all"),
    (env.VERIFY, "0", False),
    (env.NUM_THREADS, " 3 ", 3),
    (env.LOG, "INFO", "info"),
    (env.ROCM_PATH, "/opt/rocm-7.1", Path("/opt/rocm-7.1")),
]

BAD = [
    (env.CACHE, "maybe"),
    (env.VERIFY, "2"),
    (env.CACHE_MAX_MB, "0"),
    (env.CACHE_MAX_MB, "1.5"),
    (env.CACHE_MAX_MB, "lots"),
    (env.NUM_THREADS, "-1"),
    (env.NUM_THREADS, "all"),
    (env.LOG, "verbose"),
]


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


@pytest.mark.parametrize(("variable", "text", "value"), GOOD, ids=lambda value: getattr(value, "name", None))
def test_good_value(variable, text, value, monkeypatch):
    monkeypatch.setenv(variable.name, text)
    assert variable.get() == value
    assert type(variable.get()) is type(value)


@pytest.mark.parametrize(("variable", "text"), BAD, ids=lambda value: getattr(value, "name", None))
def test_bad_value_names_variable_value_and_accepted(variable, text, monkeypatch):
    monkeypatch.setenv(variable.name, text)
    with pytest.raises(InputError) as caught:
        variable.get()
    for expected in (variable.name, repr(text), variable.accepts):
        assert expected in str(caught.value)


def test_defaults():
    assert env.CACHE.get() is True
    assert env.CACHE_MAX_MB.get() == 1024
    assert env.LLD.get() is None
    assert env.TARGET.get() == "auto"
    assert env.DUMP_DIR.get() is None
    assert env.PRINT_AFTER.get() == ""
    assert env.VERIFY.get() is True
    assert env.LOG.get() == "warning"
    assert env.ROCM_PATH.get() == Path("/opt/rocm")


def test_values_are_read_at_call_time(monkeypatch):
    monkeypatch.setenv("SPCONV_CACHE_MAX_MB", "5")
    assert env.CACHE_MAX_MB.get() == 5
    monkeypatch.setenv("SPCONV_CACHE_MAX_MB", "6")
    assert env.CACHE_MAX_MB.get() == 6
    monkeypatch.delenv("SPCONV_CACHE_MAX_MB")
    assert env.CACHE_MAX_MB.get() == 1024


@pytest.mark.parametrize("variable", env.VARIABLES, ids=lambda variable: variable.name)
def test_empty_means_not_set(variable, monkeypatch):
    expected = variable.get()
    monkeypatch.setenv(variable.name, "  ")
    assert variable.get() == expected
    assert not variable.is_set()


def test_default_cache_dir_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.CACHE_DIR.get() == tmp_path / "spconv_compiler"


def test_no_home_directory_means_no_cache_dir(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user id without an account
    assert env.CACHE_DIR.get() is None
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *args, **kwargs: "~/.cache/spconv_compiler")
    assert env.CACHE_DIR.get() is None


def test_home_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPCONV_CACHE_DIR", "~/kernels")
    assert env.CACHE_DIR.get() == tmp_path / "kernels"


def test_threads_default_to_the_cores_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert env.NUM_THREADS.get() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    assert env.NUM_THREADS.get() == 9


def test_describe_names_every_variable_and_survives_bad_values(monkeypatch):
    monkeypatch.setenv("SPCONV_NUM_THREADS", "none")
    monkeypatch.setenv("SPCONV_TARGET", "cpu")
    text = env.describe()
    for variable in env.VARIABLES:
        assert variable.name in text and variable.description in text and variable.accepts in text
    assert "SPCONV_TARGET = cpu\n" in text
    assert "SPCONV_CACHE_MAX_MB = 1024 (default)" in text
    assert "SPCONV_NUM_THREADS = (bad value: " in text


@given(text=st.text("0123.-+eEon~/ ,\n٣²é", max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_is_a_value_or_an_input_error(text):
    with pytest.MonkeyPatch.context() as patch:
        for variable in env.VARIABLES:
            patch.setenv(variable.name, text)
            try:
                variable.get()
            except InputError as error:
                assert variable.name in str(error)


def _reads_environment(tree: ast.AST) -> list[int]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and names.intersection(alias.name for alias in node.names))
    ]


def test_only_this_file_reads_the_environment():
    own = REPOSITORY / "spconv_compiler" / "env.py"
    assert _reads_environment(ast.parse(own.read_text())), "the check is blind"
    found = []
    for package in ("spconv_compiler", "passes", "dialect"):
        for path in (REPOSITORY / package).rglob("*.py"):
            if path != own:
                found += [f"{path}:{line}" for line in _reads_environment(ast.parse(path.read_text()))]
    assert not found, "environment variables are read through spconv_compiler/env.py only"
