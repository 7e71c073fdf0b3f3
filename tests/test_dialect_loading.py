"""Bindings and dialect are loaded once per context; in processes of their own, since a mistake aborts."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

USE = """
from spconv_compiler.bindings import ir
def use(context):
    with context:
        ir.Module.parse('func.func private @f(!spconv.coords<32>)')
"""


def run(code: str, **environment: str) -> str:
    """What `code` prints in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_neither_torch_nor_mlir() -> None:
    code = "import sys, spconv_compiler; print([m for m in ('torch', 'flydsl', 'numpy') if m in sys.modules])"
    assert run(code) == "[]"


def test_compiling_text_does_not_load_torch() -> None:
    code = """
    import sys
    from spconv_compiler.tools.opt import main
    assert main(["--to-level", "stages", "--target", "gfx950", "-o", "/dev/null", "/dev/null"]) == 0
    print("torch" in sys.modules)
    """
    assert run(code) == "False"


def test_fresh_repeated_and_several_contexts() -> None:
    code = f"""
    {textwrap.indent(USE, "    ").strip()}
    from spconv_compiler import dialect
    from spconv_compiler.context import make_context
    first = make_context()
    use(first)
    dialect.register(first)
    dialect.register(first)
    second = make_context()
    use(second)
    dialect.register(first)
    use(first)
    third = ir.Context()
    dialect.register(third)
    use(third)
    with first:
        dialect.register(ir.Context.current)
    print("done")
    """
    assert run(code) == "done"


def test_dead_contexts_are_not_kept() -> None:
    code = """
    import gc, weakref
    from spconv_compiler.context import make_context
    contexts = [weakref.ref(make_context()) for _ in range(3)]
    gc.collect()
    print([context() for context in contexts])
    """
    assert run(code) == "[None, None, None]"


def test_every_irdl_op_has_a_class_and_every_class_an_irdl_op(repo: pathlib.Path) -> None:
    import re

    from spconv_compiler import dialect
    from spconv_compiler.dialect.loader import FILES
    from spconv_compiler.dialect.op import SpconvOp

    assert {f"{name}.irdl.mlir" for name in FILES} == {path.name for path in (repo / "dialect").glob("*.irdl.mlir")}
    text = "".join(path.read_text(encoding="utf-8") for path in (repo / "dialect").glob("*.irdl.mlir"))
    named = {f"spconv.{name}" for name in re.findall(r"irdl\.operation @(\w+)", text)}
    classes = [value for value in vars(dialect).values() if isinstance(value, type) and issubclass(value, SpconvOp)]
    assert {class_.OPERATION_NAME for class_ in classes} == named


def test_pure_ops_and_no_others_are_free_of_effects() -> None:
    """cse removes the second of two equal ops exactly where PURE says so: see lit_tests/dialect/purity.mlir."""
    from spconv_compiler import dialect
    from spconv_compiler.dialect.op import SpconvOp

    classes = [value for value in vars(dialect).values() if isinstance(value, type) and issubclass(value, SpconvOp)]
    impure = {class_.OPERATION_NAME for class_ in classes if not class_.PURE}
    accesses = "atomic copy copy_group copy_wait fetch_add load load_device store store_device".split()
    makers = {"spconv.alloc", "spconv.launch", "spconv.level_maps", "spconv.place_coords"}
    assert impure == makers | {f"spconv.tile_{name}" for name in accesses}


def test_the_wheel_still_exports_the_irdl_loader() -> None:
    """The canary: when a new flydsl drops the symbol, adapt load_irdl in spconv_compiler/bindings.py."""
    import ctypes

    from spconv_compiler import bindings

    (library,) = (bindings._FOLDER / "_mlir" / "_mlir_libs").glob("libFlyPythonCAPI.so*")
    assert getattr(ctypes.CDLL(str(library)), bindings._IRDL_SYMBOL)


def test_a_wheel_without_the_irdl_loader_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from spconv_compiler import bindings
    from spconv_compiler.context import make_context
    from spconv_compiler.errors import ToolchainError

    with make_context(), bindings.ir.Location.unknown():
        module = bindings.ir.Module.create()
        monkeypatch.setattr(bindings, "_IRDL_SYMBOL", "no_such_symbol")
        with pytest.raises(ToolchainError, match=r"exports no no_such_symbol; install flydsl>=0\.5,<0\.6"):
            bindings.load_irdl(module)
        monkeypatch.setattr(bindings, "_FOLDER", pathlib.Path("/nonexistent"))
        with pytest.raises(ToolchainError, match=r"has no libFlyPythonCAPI\.so"):
            bindings.load_irdl(module)


def test_missing_flydsl_is_a_clear_error() -> None:
    code = """
    import importlib.util
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "flydsl" else find(name, *rest)
    try:
        import spconv_compiler.bindings
    except Exception as error:
        print(type(error).__name__, error)
    """
    message = "ToolchainError flydsl is not installed: found no module `flydsl`; install flydsl>=0.5,<0.6"
    assert run(code) == message


def test_a_later_import_of_flydsl_is_complete() -> None:
    """The bindings leave a package behind whose own code runs when it is first used."""
    code = """
    import sys
    from spconv_compiler.bindings import ir, llvm
    import flydsl, inspect
    inspect.stack()
    assert "flydsl.autotune" not in sys.modules
    from flydsl import autotune
    import flydsl.expr
    from flydsl._mlir import ir as again
    assert again is ir and type(flydsl) is type(sys)
    print(flydsl.__version__, callable(autotune))
    """
    version, complete = run(code).split()
    assert version.startswith("0.5.") and complete == "True"


def test_a_failing_import_of_flydsl_can_be_repeated() -> None:
    code = """
    import sys
    from spconv_compiler.bindings import ir
    sys.modules["flydsl.autotune"] = None
    import flydsl
    for attempt in range(2):
        try:
            flydsl.autotune
        except ImportError as error:
            print(type(error).__name__)
    del sys.modules["flydsl.autotune"]
    print(callable(flydsl.autotune))
    """
    assert run(code).split() == ["ModuleNotFoundError", "ModuleNotFoundError", "True"]


def test_flydsl_that_was_imported_first_is_left_alone() -> None:
    code = """
    import flydsl
    from spconv_compiler.bindings import ir
    import sys
    print(sys.modules["flydsl"] is flydsl, callable(flydsl.autotune))
    """
    assert run(code) == "True True"


def test_unknown_name_of_bindings() -> None:
    from spconv_compiler import bindings

    with pytest.raises(AttributeError, match="no attribute 'tosa'"):
        bindings.tosa  # noqa: B018
