"""How native handlers are made: what is refused, and the errors of the compiler's processes."""

from __future__ import annotations

import dataclasses
import operator
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spconv_compiler import toolchain
from spconv_compiler.errors import CodegenError, ToolchainError
from spconv_compiler.sim import algebra as al
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.native import library
from spconv_compiler.sim.native.emit import Build, Handler, Module
from spconv_compiler.sim.native.library import emit_part, family_of
from spconv_compiler.sim.rows import Row, row


def emit(changed: Row, shape: str = "VV") -> Module:
    module = Module(Build())
    family_of(changed).emit(module, changed, shape, "handler")
    return module


def meaning(function: Callable[..., Any], signature: str = "u32 <- u32 u32") -> Row:
    return row("v_test_u32", "valu", "VOP3", signature, function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a, b: a + np.int32(1), "mixes u32 and the constant"),
        (lambda a, b: a + al.as_i32(b), "mixes u32 and i32"),
        (lambda a, b: a if a > b else b, "branches on a value"),
        (al.primitive(lambda a, b: a), "has no primitive '<lambda>'"),
        (lambda a, b: al.as_f32(a) & al.as_f32(b), "and of f32"),
        (lambda a, b: al.minimum(al.as_f32(a), al.as_f32(b)), "is for integers"),
    ],
)
def test_meanings_that_have_no_native_form(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(CodegenError, match=message):
        emit(meaning(function))


def test_numbers_on_either_side() -> None:
    """numpy scalars leave operators to the carrier, also on the left."""
    module = emit(meaning(lambda a, b: (np.uint32(1) << (a & np.uint32(31))) - b | 7))
    text = "\n".join(module.functions)
    assert text.count("llvm.shl") == text.count("llvm.sub") == 1 and "constant(7 : i32)" in text


def test_operations_check_types() -> None:
    h = Handler(Module(Build()), "handler")
    narrow, wide = h.constant(1, "i32"), h.constant(1, "i64")
    for wrong in (lambda: h.binary("add", narrow, wide), lambda: h.compare("eq", narrow, wide)):
        with pytest.raises(TypeError, match="i32 and i64"):
            wrong()
    with pytest.raises(TypeError, match="select"):
        h.select(h.constant(1, "vector<16xi1>"), narrow, narrow)


def test_an_unknown_kind_of_row() -> None:
    with pytest.raises(CodegenError, match="v_test_u32: the native engine has no handlers for opcodes of kind 'dream'"):
        family_of(dataclasses.replace(meaning(operator.add), kind="dream"))


def test_a_row_without_meaning() -> None:
    with pytest.raises(CodegenError, match="v_test_u32: the row has no meaning"):
        emit(row("v_test_u32", "valu", "VOP3", "u32 <- u32 u32"))


def test_the_host_must_have_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "host_cpu_features", lambda: frozenset({"avx2", "fma"}))
    with pytest.raises(ToolchainError, match="needs an x86 CPU with f16c, popcnt"):
        library.build_of(True)


def test_text_that_does_not_compile() -> None:
    module = emit_part(library.build_of(True), {}, 0, common=False)
    module.functions.insert(0, "llvm.func @broken() { llvm.nonsense }")
    with pytest.raises(CodegenError, match="exit code 1: .*custom op 'llvm.nonsense' is unknown"):
        library._build_more([module])


def test_handlers_are_kept_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    build = library.build_of(True)
    shapes = {"mine": (ROWS["v_add_u32"], "SS")}
    first = library.load_more(build, shapes)
    monkeypatch.setattr(library, "_build_more", lambda modules: pytest.fail("compiled again"))
    assert library.load_more(build, shapes).addresses == first.addresses and "mine" in first.addresses


def test_handlers_compile_for_other_hosts(tmp_path: pathlib.Path) -> None:
    """Some of every family; the features of the host decide the machine code."""
    names = ("v_perm_b32", "v_cmp_lt_f32", "v_cvt_pk_f16_f32", "v_mad_u64_u32", "s_bcnt1_i32_b64")
    wanted = {name: (ROWS[name], family_of(ROWS[name]).shapes(ROWS[name])[0]) for name in names}
    base = frozenset({"avx2", "fma", "f16c", "popcnt", "avx"})
    made = []
    for number, more in enumerate(((), ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"))):
        module = emit_part(Build(features=base | set(more)), wanted, 0, common=True)
        library.compile_object("\n".join(module.functions), ["handlers_0"], tmp_path / f"{number}.o")
        made.append((tmp_path / f"{number}.o").read_bytes())
    assert made[0] != made[1]


def test_every_opcode_that_has_a_family_can_be_written() -> None:
    """Text only: compiling all of them takes half a minute."""
    from spconv_compiler.sim.modifiers import Modifiers, derive

    shapes = {}
    for each in ROWS.values():
        if each.kind in library.families():
            plain = derive(each, Modifiers())
            shapes.update({f"{each.name} {shape}": (plain, shape) for shape in family_of(plain).shapes(plain)})
    module = emit_part(Build(), shapes, 0, common=True)
    assert len(module.handlers) == len(shapes) + 2 > 1500
