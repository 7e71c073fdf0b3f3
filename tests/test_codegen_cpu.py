"""Shared objects for every x86 level: they link anywhere, and the inner loop is made of the right instructions."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest

import spconv_compiler as sc
from spconv_compiler.bindings import ir
from spconv_compiler.codegen_cpu import emit_cpu
from spconv_compiler.context import make_context
from spconv_compiler.errors import CodegenError
from spconv_compiler.targets import CpuTarget, get_target

LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-bf16")
OBJDUMP = shutil.which("llvm-objdump") or shutil.which("objdump")
needs_objdump = pytest.mark.skipif(OBJDUMP is None, reason="neither llvm-objdump nor objdump is on the PATH")


def run_objdump(option: str, code: bytes, folder: pathlib.Path) -> str:
    assert OBJDUMP is not None
    path = folder / "kernels.so"
    path.write_bytes(code)
    command = [OBJDUMP, option, "--no-show-raw-insn", "-M", "intel", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def inner_loop(listing: str) -> list[str]:
    """The instructions of the gemm's shortest loop that multiplies."""
    body = re.search(r"<gemm_\w+_worker>:\n(.*?)(?:\n\n|\Z)", listing, re.DOTALL)
    assert body is not None
    code = [(int(at, 16), text) for at, text in re.findall(r"^\s*([0-9a-f]+):\s+(\S.*)$", body[1], re.MULTILINE)]
    loops = []
    for place, text in code:
        target = re.match(r"j\w+\s+(?:0x)?([0-9a-f]+)", text)
        if target is not None and int(target[1], 16) < place:
            loop = [inside for at, inside in code if int(target[1], 16) <= at <= place]
            loops += [loop] if any(re.search("vfmadd|vdpbf16ps", inside) for inside in loop) else []
    return min(loops, key=len)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("level", LEVELS)
@needs_objdump
def test_inner_loop(level: str, dtype: str, tmp_path: pathlib.Path) -> None:
    code = sc.compile_conv(3, 64, 64, dtype=dtype, target=level).object
    loop = inner_loop(run_objdump("-d", code, tmp_path))
    target = get_target(level)
    assert isinstance(target, CpuTarget)
    register = "zmm" if target.lanes == 16 else "ymm"
    instruction = "vdpbf16ps" if target.bf16_dot and dtype == "bf16" else "vfmadd231ps"
    products = [text for text in loop if re.match("vfmadd|vdpbf16ps", text)]
    rows, vectors = target.tiles[0]
    # Four steps of k, each a product per register of the tile, and nothing in memory but operands.
    assert len(products) == 4 * rows * vectors
    assert all(text.startswith(instruction) and register in text for text in products)
    assert not [text for text in loop if "rsp" in text]
    others = len(loop) - len(products)
    # Two registers of weights and a broadcast a row and step, and what counts.
    assert others <= 4 * (rows + vectors) + 8


@pytest.mark.parametrize("level", LEVELS)
@needs_objdump
def test_registers_stay_within_the_level(level: str, tmp_path: pathlib.Path) -> None:
    for dtype in ("f32", "bf16", "f16"):
        listing = run_objdump("-d", sc.compile_conv(3, 20, 24, dtype=dtype, target=level).object, tmp_path)
        assert ("zmm" in listing) == (level != "x86-64-v3")
        assert ("vdpbf16ps" in listing) == (level == "x86-64-v4-bf16" and dtype == "bf16")


@pytest.mark.parametrize("level", LEVELS)
@needs_objdump
def test_objects_ask_for_threads_and_memset_only(level: str, tmp_path: pathlib.Path) -> None:
    """No helper of a compiler's runtime library, which no process need have (__truncsfbf2, __extendhfsf2)."""
    for dtype in ("bf16", "f16"):
        listing = run_objdump("-T", sc.compile_conv(3, 7, 9, dtype=dtype, target=level).object, tmp_path)
        wanted = set(re.findall(r"\*UND\*.*?(\w+)$", listing, re.MULTILINE))
        threads = {"pthread_create", "pthread_join", "pthread_setaffinity_np", "sched_getaffinity", "sched_getcpu"}
        assert wanted <= threads | {"memset", "memcpy"}


def test_equal_modules_give_equal_objects() -> None:
    first = sc.compile_conv(3, 5, 6, target="x86-64-v3").object
    sc.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPCONV_CACHE", "off")
        assert sc.compile_conv(3, 5, 6, target="x86-64-v3").object == first


def test_a_module_without_kernels_is_refused() -> None:
    target = get_target("x86-64-v3")
    assert isinstance(target, CpuTarget)
    with make_context(), ir.Location.unknown(), pytest.raises(CodegenError, match="no kernels"):
        emit_cpu(ir.Module.create(), target)
