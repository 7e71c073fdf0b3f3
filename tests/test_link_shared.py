"""Linking with the linker of this machine: x86 libraries that load, and a gfx950 code object."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from spconv_compiler import linker
from spconv_compiler.errors import CodegenError, ToolchainError


@pytest.fixture
def real_linker() -> linker.Linker:
    """The linker of this machine, or a skip."""
    try:
        return linker.find_linker()
    except ToolchainError as error:
        pytest.skip(str(error))


FUNCTIONS = """
func.func @add(%a: i64, %b: i64) -> i64 attributes {llvm.emit_c_interface} {
  %r = arith.addi %a, %b : i64
  return %r : i64
}
func.func private @expf(f32) -> f32
func.func @twice_exp(%a: f32) -> f32 {
  %e = func.call @expf(%a) : (f32) -> f32
  %r = arith.addf %e, %e : f32
  return %r : f32
}
"""


def make_object(path: Path, pic: bool = True) -> Path:
    """Compiles FUNCTIONS for this machine, as the CPU target does."""
    from spconv_compiler.bindings import ExecutionEngine, PassManager, ir

    with ir.Context():
        module = ir.Module.parse(FUNCTIONS)
        passes = "convert-arith-to-llvm,convert-func-to-llvm,reconcile-unrealized-casts"
        PassManager.parse(f"builtin.module({passes})").run(module.operation)
        engine = ExecutionEngine(module, opt_level=2, enable_pic=pic)
        engine.lookup("add")
        engine.dump_to_object_file(str(path))
    return path


def test_link_shared_makes_a_library_that_loads(real_linker, tmp_path):
    (tmp_path / "a folder").mkdir()
    library = tmp_path / "a folder" / "k.so"
    library.write_text("an older one")
    linker.link_shared([make_object(tmp_path / "k.o")], library)
    loaded = ctypes.CDLL(str(library))
    loaded.add.restype = ctypes.c_int64
    loaded.add.argtypes = [ctypes.c_int64, ctypes.c_int64]
    assert loaded.add(2**40, 2) == 2**40 + 2
    loaded.twice_exp.restype = ctypes.c_float
    loaded.twice_exp.argtypes = [ctypes.c_float]
    assert loaded.twice_exp(1.0) == pytest.approx(5.4365637, rel=1e-6)
    assert [path.name for path in library.parent.iterdir()] == ["k.so"]


def test_link_shared_refuses_what_is_no_object(real_linker, tmp_path):
    (tmp_path / "k.o").write_bytes(b"\x7fELF, not really")
    library = tmp_path / "k.so"
    library.write_text("untouched")
    with pytest.raises(CodegenError) as caught:
        linker.link_shared([tmp_path / "k.o"], library)
    assert "failed with exit code 1" in str(caught.value) and "k.o" in str(caught.value)
    assert real_linker.version in str(caught.value)
    assert library.read_text() == "untouched"
    assert sorted(path.name for path in tmp_path.glob("k.*")) == ["k.o", "k.so"]


def test_link_shared_says_when_the_output_has_no_folder(real_linker, tmp_path):
    with pytest.raises(CodegenError, match="No such file or directory"):
        linker.link_shared([make_object(tmp_path / "k.o")], tmp_path / "missing" / "k.so")


def test_toolkit_links_a_code_object_for_gfx950(real_linker, tmp_path, monkeypatch):
    from spconv_compiler.bindings import PassManager, ir

    monkeypatch.setenv("SPCONV_CACHE_DIR", str(tmp_path / "cache with space"))
    kernel = """
    gpu.module @kernels [#rocdl.target<chip = "gfx950">] {
      llvm.func @store(%p: !llvm.ptr<1>) attributes {gpu.kernel, rocdl.kernel} {
        %c = llvm.mlir.constant(42 : i32) : i32
        llvm.store %c, %p : i32, !llvm.ptr<1>
        llvm.return
      }
    }"""
    with ir.Context():
        module = ir.Module.parse(f"module attributes {{gpu.container_module}} {{{kernel}}}")
        pipeline = f'builtin.module(gpu-module-to-binary{{format=bin toolkit="{linker.toolkit_dir()}"}})'
        PassManager.parse(pipeline).run(module.operation)
        assert 'bin = "\\7FELF' in str(module)
