"""Shared objects for every x86 level: they link anywhere, and the inner loop is made of the right instructions."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import threading
import time

import pytest

import spconv_compiler as sc
from spconv_compiler import codegen_cpu
from spconv_compiler.bindings import ir
from spconv_compiler.codegen_cpu import emit_cpu
from spconv_compiler.context import make_context
from spconv_compiler.errors import CodegenError
from spconv_compiler.object_file import write_object
from spconv_compiler.targets import CpuTarget, get_target

LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-bf16", "x86-64-v4-amx")
OBJDUMP = shutil.which("llvm-objdump") or shutil.which("objdump")
needs_objdump = pytest.mark.skipif(OBJDUMP is None, reason="neither llvm-objdump nor objdump is on the PATH")


def run_objdump(option: str, code: bytes, folder: pathlib.Path) -> str:
    assert OBJDUMP is not None
    path = folder / "kernels.so"
    path.write_bytes(code)
    command = [OBJDUMP, option, "--no-show-raw-insn", "-M", "intel", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def inner_loops(listing: str) -> list[list[str]]:
    """The instructions of the gemm's loops that multiply and have no other such loop in them, the shortest first."""
    body = re.search(r"<gemm_\w+_worker>:\n(.*?)(?:\n\n|\Z)", listing, re.DOTALL)
    assert body is not None
    code = [(int(at, 16), text) for at, text in re.findall(r"^\s*([0-9a-f]+):\s+(\S.*)$", body[1], re.MULTILINE)]
    spans = []
    for place, text in code:
        target = re.match(r"j\w+\s+(?:0x)?([0-9a-f]+)", text)
        if target is not None and int(target[1], 16) < place:
            spans.append((int(target[1], 16), place))
    products = [at for at, text in code if re.search("vfmadd|vdpbf16ps", text)]
    multiply = [(start, end) for start, end in spans if any(start <= at <= end for at in products)]
    innermost = [
        (first, last)
        for first, last in multiply
        if not any(first <= start and end <= last for start, end in multiply if (start, end) != (first, last))
    ]
    return sorted(([text for at, text in code if start <= at <= end] for start, end in innermost), key=len)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("level", LEVELS)
@needs_objdump
def test_inner_loop(level: str, dtype: str, tmp_path: pathlib.Path) -> None:
    code = sc.compile_conv(3, 64, 64, dtype=dtype, target=level, schedule="chunk_stationary").object
    loops = inner_loops(run_objdump("-d", code, tmp_path))
    target = get_target(level)
    assert isinstance(target, CpuTarget)
    register = "zmm" if target.lanes == 16 else "ymm"
    instruction = "vdpbf16ps" if target.bf16_dot and dtype == "bf16" else "vfmadd231ps"
    rows, vectors = target.tiles[0]
    # The last block of a batch may be half as tall.
    for loop, tall in zip(loops, (rows // 2, rows), strict=True):
        products = [text for text in loop if re.match("vfmadd|vdpbf16ps", text)]
        # Four steps of k, each a product per register of the tile, and nothing in memory but operands.
        assert len(products) == 4 * tall * vectors
        assert all(text.startswith(instruction) and register in text for text in products)
        assert not [text for text in loop if "rsp" in text]
        others = len(loop) - len(products)
        # Registers of weights and a broadcast a row and step, and what counts.
        assert others <= 4 * (tall + vectors) + 8


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


def compiled_anew(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv("SPCONV_CACHE", "off")
    sc.clear_caches()
    return sc.compile_conv(3, 5, 6, target="x86-64-v3").object


def test_the_object_does_not_depend_on_the_number_of_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen_cpu, "_processors", lambda: 1)
    alone = compiled_anew(monkeypatch)
    monkeypatch.setattr(codegen_cpu, "_processors", lambda: 2)
    assert compiled_anew(monkeypatch) == alone


def test_parts_are_compiled_side_by_side_and_hold_every_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both, names, sizes = threading.Barrier(2, timeout=60), list[str](), list[int]()

    def watched(module: ir.Module, exported: list[str], path: pathlib.Path) -> None:
        # Whoever comes first waits for the other: one after the other, they would never meet.
        both.wait()
        names.extend(exported)
        write_object(module, exported, path)
        sizes.append(path.stat().st_size)

    monkeypatch.setattr(codegen_cpu, "_processors", lambda: 2)
    monkeypatch.setattr(codegen_cpu, "write_object", watched)
    compiled_anew(monkeypatch)
    launched = {launch.kernel for launch in sc.compile_conv(3, 5, 6, target="x86-64-v3").plan.launches}
    assert len(names) == len(set(names)) and launched < set(names)
    assert max(sizes) < 2 * min(sizes)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_until_llvm_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), list[float]()

    def slow(module: ir.Module, exported: list[str], path: pathlib.Path) -> None:
        begun.set()
        write_object(module, exported, path)
        time.sleep(0.3)
        ended.append(time.monotonic())

    monkeypatch.setattr(codegen_cpu, "write_object", slow)
    compiling = threading.Thread(target=compiled_anew, args=(monkeypatch,))
    compiling.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        # And the child's own lock is free.
        os._exit(0 if codegen_cpu._compiling.acquire(timeout=5) else 1)
    forked = time.monotonic()
    compiling.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(ended) == 2 and forked >= max(ended)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_part_that_fails_fails_the_whole(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(module: ir.Module, exported: list[str], path: pathlib.Path) -> None:
        if path.name == f"kernels{failing}.o":
            raise CodegenError("no code")
        write_object(module, exported, path)

    monkeypatch.setattr(codegen_cpu, "write_object", fails)
    with pytest.raises(CodegenError, match=r"no code \(target x86-64-v3\)"):
        compiled_anew(monkeypatch)


def test_what_llvm_cannot_translate_is_refused(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse("func.func @kernel() { return }")
        with pytest.raises(CodegenError, match="cannot translate the kernels"):
            write_object(module, ["kernel"], tmp_path / "kernels.o")
    assert "LLVM" in capfd.readouterr().err


def test_a_module_without_kernels_is_refused() -> None:
    target = get_target("x86-64-v3")
    assert isinstance(target, CpuTarget)
    with make_context(), ir.Location.unknown(), pytest.raises(CodegenError, match="no kernels"):
        emit_cpu(ir.Module.create(), target)
