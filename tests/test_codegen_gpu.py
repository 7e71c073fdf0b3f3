"""Code generation for gfx950: what the object's metadata says, and that no failure of the back end passes silently."""

from __future__ import annotations

import os

import pytest
from gpu_interpreter.conv import fresh_context, options_for

from spconv_compiler.bindings import ir
from spconv_compiler.codegen_gpu import GpuCode, emit_gpu, emit_isa, isa_of, watch_stderr
from spconv_compiler.errors import CodegenError, ToolchainError
from spconv_compiler.frontend import conv_module
from spconv_compiler.kernel_facts import facts_of_object, facts_of_text
from spconv_compiler.linker import find_linker, toolkit_dir
from spconv_compiler.options import CompileOptions
from spconv_compiler.pipeline import stages_for
from spconv_compiler.plan import Plan, extract_plan
from spconv_compiler.targets import GpuTarget, get_target

CUBE = (3, 3, 3)


@pytest.fixture(autouse=True)
def _linker() -> None:
    try:
        find_linker()
    except ToolchainError as error:
        pytest.skip(str(error))


def target() -> GpuTarget:
    found = get_target("gfx950")
    assert isinstance(found, GpuTarget)
    return found


def lowered(options: CompileOptions) -> ir.Module:
    """The module at level rocdl, in the current context."""
    module = conv_module(options)
    for stage in stages_for(target(), options.schedule):
        for pass_ in stage.passes:
            pass_.run(module)
    return module


def compiled(options: CompileOptions) -> tuple[GpuCode, Plan]:
    with fresh_context():
        module = lowered(options)
        before = module.operation.get_asm()
        code = emit_gpu(module, target(), toolkit_dir())
        assert module.operation.get_asm() == before, "code generation changes the module"
        return code, extract_plan(module)


@pytest.mark.parametrize(
    "options",
    [
        options_for(CUBE, 128, 128, bias=True, activation="relu", out_dtype="bf16"),
        options_for((5, 5, 5), 6, 40, key_width=64, dtype="f16", out_dtype="f16"),
        options_for((1, 3, 3), 512, 512, dtype="f32"),
        options_for((7, 7, 7), 1, 17),
    ],
    ids=lambda options: options.name,
)
def test_kernels_match_the_plan(options: CompileOptions) -> None:
    """Every launch finds its kernel with the block it asks for and an argument block laid out as the plan passes."""
    code, plan = compiled(options)
    assert code.object[:4] == b"\x7fELF"
    assert {launch.kernel for launch in plan.launches} == set(code.kernels)
    for launch in plan.launches:
        kernel = code.kernels[launch.kernel]
        assert kernel.block == launch.block
        sizes = [8 if argument.kind == "buffer" or argument.dtype == "i64" else 4 for argument in launch.arguments]
        assert [argument.size for argument in kernel.arguments] == sizes
        kinds = ["global_buffer" if argument.kind == "buffer" else "by_value" for argument in launch.arguments]
        assert [argument.kind for argument in kernel.arguments] == kinds
        end = 0
        for argument in kernel.arguments:
            assert argument.offset == -(-end // argument.size) * argument.size
            end = argument.offset + argument.size
        assert kernel.kernarg_bytes == end
        # All 8 waves of a SIMD fit where 64 registers are enough; more than 128 would leave 3.
        assert kernel.vgpr <= 128 and kernel.vgpr_spills == kernel.scratch_bytes == kernel.agpr == 0
    gemm = next(kernel for name, kernel in code.kernels.items() if name.startswith("gemm"))
    assert gemm.lds_bytes == 0 and gemm.block == 64


def test_equal_input_gives_equal_bytes() -> None:
    options = options_for((1, 1, 3), 16, 16)
    assert compiled(options)[0].object == compiled(options)[0].object


def test_assembly_text_is_of_the_object() -> None:
    """Object and text are generated apart: the one from the module, the other from its text."""
    with fresh_context():
        module = lowered(options_for((1, 1, 3), 16, 16))
        code, text, level = emit_gpu(module, target(), toolkit_dir()), emit_isa(module, target()), str(module)
        again = emit_gpu(ir.Module.parse(level), target(), toolkit_dir())
    assert isa_of(code.object, level, target()) == text
    assert again.object == code.object, "text of level rocdl is all that code depends on"
    assert facts_of_text(text) == facts_of_object(code.object) == code.kernels


def test_text_of_another_object_is_refused() -> None:
    with fresh_context():
        module = lowered(options_for((1, 1, 3), 16, 16))
        code, level = emit_gpu(module, target(), toolkit_dir()), str(module)
    with pytest.raises(CodegenError, match="other code than that of the object"):
        isa_of(code.object, level.replace("fill_rows_16", "fill_rows_17"), target())
    with pytest.raises(CodegenError, match="level rocdl is refused"):
        isa_of(code.object, level.replace("llvm.return", "llvm.returns"), target())
    with pytest.raises(CodegenError, match="cannot be read: truncated"):
        isa_of(code.object[:-1], level, target())


def kernel_module(body: str, memory: str = "") -> str:
    """A module at level rocdl with one kernel @k(ptr, f32)."""
    return f"""
module attributes {{gpu.container_module}} {{
  gpu.module @kernels {{
    {memory}
    llvm.func @k(%p: !llvm.ptr<1>, %x: f32) attributes {{
        gpu.kernel, rocdl.kernel, rocdl.reqd_work_group_size = array<i32: 64, 1, 1>,
        rocdl.flat_work_group_size = "64,64"}} {{
      {body}
      llvm.return
    }}
  }}
}}"""


def emit_text(text: str) -> GpuCode:
    with fresh_context():
        return emit_gpu(ir.Module.parse(text), target(), toolkit_dir())


def test_a_plain_kernel_is_accepted() -> None:
    code = emit_text(kernel_module("llvm.store %x, %p : f32, !llvm.ptr<1>"))
    assert code.kernels["k"].block == 64 and code.kernels["k"].kernarg_bytes == 12


def test_errors_of_the_back_end_are_raised() -> None:
    """LLVM prints `error: no libcall available for ftanh`, and the pass succeeds with an empty kernel."""
    body = """%t = llvm.intr.tanh(%x) : (f32) -> f32
      llvm.store %t, %p : f32, !llvm.ptr<1>"""
    with pytest.raises(CodegenError, match="error:.*tanh"):
        emit_text(kernel_module(body))


def test_too_much_local_memory_is_refused() -> None:
    memory = "llvm.mlir.global private @lds() {addr_space = 3 : i32} : !llvm.array<163844 x i8>"
    body = """%a = llvm.mlir.addressof @lds : !llvm.ptr<3>
      llvm.store volatile %x, %a : f32, !llvm.ptr<3>"""
    with pytest.raises(CodegenError, match="163844.*163840"):
        emit_text(kernel_module(body, memory))


def test_scratch_is_refused() -> None:
    body = """%n = llvm.mlir.constant(64 : i32) : i32
      %a = llvm.alloca %n x f32 : (i32) -> !llvm.ptr<5>
      llvm.store volatile %x, %a : f32, !llvm.ptr<5>"""
    with pytest.raises(CodegenError, match="kernel k needs [1-9].* bytes of scratch"):
        emit_text(kernel_module(body))


def test_hidden_arguments_are_refused() -> None:
    body = """%h = llvm.call_intrinsic "llvm.amdgcn.implicitarg.ptr"() : () -> !llvm.ptr<4>
      %v = llvm.load %h : !llvm.ptr<4> -> f32
      llvm.store %v, %p : f32, !llvm.ptr<1>"""
    with pytest.raises(CodegenError, match="kernel k takes hidden arguments hidden_"):
        emit_text(kernel_module(body))


def test_a_module_without_kernels_is_refused() -> None:
    with pytest.raises(CodegenError, match="no kernels"):
        emit_text("module {}")


def test_metadata_that_lacks_a_fact_is_refused() -> None:
    with pytest.raises(CodegenError, match="no .amdgpu_metadata"):
        facts_of_text("s_endpgm")
    with fresh_context():
        module = lowered(options_for((1, 1, 3), 16, 16))
        text, code = emit_isa(module, target()), emit_gpu(module, target(), toolkit_dir()).object
    assert "fill_rows_16" in facts_of_text(text)
    with pytest.raises(CodegenError, match="lacks 'vgpr_count'"):
        facts_of_text(text.replace(".vgpr_count:", ".vgpr_number:"))
    with pytest.raises(CodegenError, match="lacks 'vgpr_count'"):
        facts_of_object(code.replace(b".vgpr_count", b".vgpr_kount"))


def test_other_output_on_stderr_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with watch_stderr() as log:
        os.write(2, b"remark: nothing special\n")
    assert log == ["remark: nothing special\n"]
    assert capfd.readouterr().err == "remark: nothing special\n"
    with watch_stderr() as log:
        os.write(2, b"<unknown>:0: error: something broke\n")
    assert capfd.readouterr().err == "" and "something broke" in log[0]
