"""Clauses that overwrite their addresses (clauses.py): the code generator makes them, and they are parted."""

from __future__ import annotations

import pytest

from spconv_compiler import clauses, compile_conv
from spconv_compiler.artifact import Artifact
from spconv_compiler.bindings import ir
from spconv_compiler.codegen_gpu import emit_gpu, isa_of
from spconv_compiler.context import make_context
from spconv_compiler.errors import CodegenError
from spconv_compiler.linker import toolkit_dir
from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.static_checks import check, check_clauses
from spconv_compiler.targets import GpuTarget, get_target

# Rows that no vector load takes: 16 half words, or 8 words and more, in a row.
GATHERED = {"half words": (129, 512, "bf16", "pairs_m16"), "words": (273, 256, "f32", "pair_major")}
_NO_OP = "rocdl.s.nop 0"


def made(name: str) -> Artifact:
    c_in, c_out, dtype, schedule = GATHERED[name]
    return compile_conv(3, c_in, c_out, dtype=dtype, target="gfx950", schedule=schedule)


def target() -> GpuTarget:
    found = get_target("gfx950")
    assert isinstance(found, GpuTarget)
    return found


def gemm(code: bytes) -> list[Instruction]:
    (kernel,) = (kernel for name, kernel in CodeObject(code).kernels.items() if name.startswith("gemm"))
    return decode(kernel.code, kernel.address)


@pytest.mark.parametrize("name", GATHERED)
def test_long_rows_of_loads_are_parted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is clean and is what the level's text makes; without the no-ops it is not clean."""
    artifact = made(name)
    level = artifact.levels["rocdl"]
    assert check(gemm(artifact.object)) == [] and _NO_OP in level
    assert isa_of(artifact.object, level, target()).count("s_nop 0") >= level.count(_NO_OP)
    unparted = "\n".join(line for line in level.splitlines() if _NO_OP not in line)
    monkeypatch.setattr(clauses, "_PLANNED", 1_000)
    with make_context(), ir.Location.unknown():
        code = emit_gpu(ir.Module.parse(unparted), target(), toolkit_dir())
    assert check_clauses(gemm(code.object)) != [] and code.level == ""


def test_others_are_left_alone() -> None:
    artifact = compile_conv(3, 3, 16, dtype="bf16", out_dtype="f32", target="gfx950")
    assert _NO_OP not in artifact.levels["rocdl"]


def test_a_clause_that_stays_wrong_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    level = made("half words").levels["rocdl"]
    unparted = "\n".join(line for line in level.splitlines() if _NO_OP not in line)
    monkeypatch.setattr(clauses, "_PARTS", (1_000,))
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(unparted)
        with pytest.raises(CodegenError, match=r"kernel gemm_pairs_m16\w+: loads in a row overwrite an address of one"):
            emit_gpu(module, target(), toolkit_dir())


def test_the_first_look_walks_instructions_as_the_decoder_does() -> None:
    """It is the cheap one of two: it may see too much, but never miss what the check finds."""
    sizes, found = [], 0
    for artifact in (*map(made, GATHERED), compile_conv(3, 64, 64, dtype="bf16", target="gfx950")):
        for kernel in CodeObject(artifact.object).kernels.values():
            instructions = decode(kernel.code, kernel.address)
            sizes.append(len(instructions))
            assert len(list(clauses._instructions(kernel.code))) == len(instructions)
            found += clauses._may_overwrite(kernel.code)
            assert clauses._may_overwrite(kernel.code) or not check_clauses(instructions)
    assert 0 < found < len(sizes)


def test_the_first_look_sees_every_kind_of_overlap() -> None:
    """buffer_load_dwordx4 v[8:11], v<address>: alone, twice, over its own address, over the one before, then stored."""

    def load(result: int, address: int) -> bytes:
        return (0xE05C1000 | (address | result << 8) << 32).to_bytes(8, "little")

    store, no_op = (0xE0701000 | (1 | 8 << 8) << 32).to_bytes(8, "little"), 0xBF800000.to_bytes(4, "little")
    for code, expected in (
        (load(8, 1), False),
        (load(8, 1) + load(12, 1), False),
        (load(8, 11), True),
        (load(8, 1) + load(12, 2) + load(0, 3), True),
        (load(8, 1) + load(12, 9), True),
        (load(8, 1) + no_op + load(12, 9), False),
        (load(8, 1) + store, True),
        (load(8, 1) + no_op + store, False),
    ):
        assert clauses._may_overwrite(code) is expected, code.hex()
