"""Running passes: verification, errors with their pass and place, printing, timing and dumps."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from spconv_compiler.bindings import ir
from spconv_compiler.context import make_context
from spconv_compiler.errors import InputError, PassError, VerifyError
from spconv_compiler.passes.base import Pass, Upstream, replace_each
from spconv_compiler.passes.registry import parse_passes
from spconv_compiler.pipeline import Stage, passes_between
from spconv_compiler.runner import Runner
from spconv_compiler.targets import get_target

CONV = """
!coords = !spconv.coords<32>
!features = tensor<?x16xbf16>
!weight = tensor<32x3x3x3x16xbf16>
func.func @f(%coords: !coords, %features: !features, %weight: !weight) -> tensor<?x32xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight)
    {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">}
    : (!coords, !features, !weight) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}
"""


@pytest.fixture
def module() -> Iterator[ir.Module]:
    with make_context(), ir.Location.unknown():
        yield ir.Module.parse(CONV)


@dataclasses.dataclass(frozen=True)
class Act(Pass):
    """A pass that does what a test says."""

    act: Callable[[ir.Module], None] = lambda module: None
    name: ClassVar[str] = "act"

    def run(self, module: ir.Module) -> None:
        self.act(module)


def conv_of(module: ir.Module) -> ir.OpView:
    return module.body.operations[0].regions[0].blocks[0].operations[0]


def break_rule(module: ir.Module) -> None:
    """Leaves a convolution behind that its verifier refuses."""
    conv_of(module).operation.attributes["dilation"] = ir.DenseI64ArrayAttr.get([0, 1, 1])


def test_passes_run_in_order_and_are_timed(module: ir.Module) -> None:
    order: list[str] = []
    runner = Runner()
    first, second = Act(lambda module: order.append("a")), Act(lambda module: order.append("b"))
    runner.run_passes(module, [first, Upstream("tidy", "cse"), second])
    assert order == ["a", "b"]
    assert set(runner.timings) == {"act", "tidy"} and all(seconds > 0 for seconds in runner.timings.values())


def test_invalid_ir_is_found_after_the_pass_that_made_it(module: ir.Module) -> None:
    with pytest.raises(VerifyError, match="pass act left invalid IR: -:6:8: .*dilation is") as caught:
        Runner().run_passes(module, [Act(break_rule), Upstream("never", "cse")])
    assert caught.value.pass_name == "act"


def test_verification_can_be_switched_off(module: ir.Module) -> None:
    Runner(verify=False).run_passes(module, [Act(break_rule)])
    with pytest.raises(ir.MLIRError):
        module.operation.verify()


KERNEL = """
gpu.module @kernels {
  gpu.func @k(%to: !spconv.buffer<f32>, %value: f32, %index: i32) kernel {
    "spconv.tile_atomic"(%value, %to, %index) {kind = "fadd"} : (f32, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }
}"""


@dataclasses.dataclass(frozen=True)
class Lower(Act):
    """A pass that adds kernels."""

    name: ClassVar[str] = "lower"
    needs: ClassVar[str] = "stages"


def add_kernel(module: ir.Module, kind: str = "fadd") -> None:
    """Adds a kernel to the nested module, which is made with the first; kinds other than "fadd" are invalid."""
    nested = [op for op in module.body.operations if op.operation.name == "gpu.module"]
    parsed = ir.Module.parse(KERNEL)
    made = parsed.body.operations[0]
    if not nested:
        made.operation.clone(ir.InsertionPoint(module.body))
    else:
        made.regions[0].blocks[0].operations[0].operation.clone(ir.InsertionPoint(nested[0].regions[0].blocks[0]))
    set_kind(module, -1, kind)


def set_kind(module: ir.Module, number: int, kind: str) -> None:
    (nested,) = (op for op in module.body.operations if op.operation.name == "gpu.module")
    kernel = list(nested.regions[0].blocks[0].operations)[number]
    kernel.regions[0].blocks[0].operations[0].operation.attributes["kind"] = ir.StringAttr.get(kind)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_kernel_is_verified_after_the_pass_that_adds_it(module: ir.Module, wrong: int) -> None:
    added: list[str] = []

    def add(module: ir.Module) -> None:
        added.append("sub" if len(added) == wrong else "fadd")
        add_kernel(module, added[-1])

    with pytest.raises(VerifyError, match="pass lower left invalid IR: .*tile_atomic.*sub"):
        Runner().run_passes(module, [Lower(add)] * 3)
    assert len(added) == wrong + 1


def test_the_host_side_is_verified_after_every_pass(module: ir.Module) -> None:
    with pytest.raises(VerifyError, match="pass lower left invalid IR: -:6:8: .*dilation is"):
        Runner().run_passes(module, [Lower(add_kernel), Lower(break_rule)])


def test_no_damage_to_an_earlier_kernel_outlives_the_stage(module: ir.Module, tmp_path: pathlib.Path) -> None:
    """Passes from level stages on leave kernels alone; if one does not, dumps of the failure name it."""
    passes = [Lower(add_kernel), Lower(lambda module: set_kind(module, 0, "sub"))]
    text = str(module)
    with pytest.raises(VerifyError, match="pass act left invalid IR: .*tile_atomic.*sub"):
        Runner().run_passes(module, [*passes, Act()])
    with pytest.raises(VerifyError, match="pass lower left invalid IR: .*tile_atomic.*sub"):
        Runner(dump=tmp_path).run_passes(ir.Module.parse(text), passes)


def test_a_refusal_names_pass_op_and_place(module: ir.Module) -> None:
    refuse = Act(lambda module: refuse.fail(conv_of(module), "not this one", "that one"))
    with pytest.raises(PassError) as caught:
        Runner().run_passes(module, [refuse])
    error = caught.value
    assert (error.message, error.pass_name, error.location) == ("not this one", "act", "-:6:8")
    assert error.notes == ("that one",)
    assert str(error).splitlines()[0] == "-:6:8: not this one"
    assert error.op is not None and "spconv.subm_conv3d" in error.op


def test_an_upstream_failure_keeps_its_place() -> None:
    """MLIR's own diagnostics become the message, and the label of the pass is attached."""
    with make_context():
        module = ir.Module.parse("gpu.module @k {\n  gpu.func @f(%a: !spconv.map<27>) kernel {\n    gpu.return\n  }\n}")
        with pytest.raises(PassError, match="-:2:3: failed to legalize operation 'gpu.func'") as caught:
            Runner().run_passes(module, [Upstream("to-rocdl", "gpu.module(convert-gpu-to-rocdl)")])
    assert caught.value.pass_name == "to-rocdl" and isinstance(caught.value.__cause__, ir.MLIRError)


def test_errors_that_are_not_about_the_ir_pass_through(module: ir.Module) -> None:
    with pytest.raises(InputError, match="unknown level 'x'; accepted: spconv"):
        Runner().run_passes(module, parse_passes("check-level{level=x}"))
    with pytest.raises(ZeroDivisionError):
        Runner().run_passes(module, [Act(lambda module: 1 // 0)])  # type: ignore[arg-type,return-value]


def test_a_value_error_inside_a_rewrite_gets_its_op(module: ir.Module) -> None:
    def rewrite(op: ir.OpView) -> list[ir.Value]:
        raise ValueError("is not lowered yet")

    with pytest.raises(PassError) as caught:
        Runner().run_passes(module, [Act(lambda module: replace_each(module, "spconv.subm_conv3d", rewrite))])
    assert str(caught.value).startswith("-:6:8: is not lowered yet\n  in pass: act\n  op: ")


def test_stages_check_the_levels_at_both_ends(module: ir.Module) -> None:
    reached: list[str] = []
    stages = passes_between(get_target("gfx950"), "spconv", "stages")
    Runner().run_stages(module, stages, lambda level, module: reached.append(level))
    assert reached == ["stages"] and "spconv.gemm" in str(module)
    with pytest.raises(VerifyError, match="not allowed on the host side at level spconv"):
        Runner().run_stages(module, stages)


def test_a_stage_that_does_not_reach_its_level_is_an_error(module: ir.Module) -> None:
    with pytest.raises(VerifyError, match="subm_conv3d is not allowed on the host side at level stages"):
        Runner().run_stages(module, [Stage("spconv", "stages", (Upstream("nothing", "cse"),))])


def test_printing(module: ir.Module, capsys: pytest.CaptureFixture[str]) -> None:
    passes = [Upstream("one", "cse"), Upstream("two", "canonicalize")]
    Runner(print_after="two").run_passes(module, passes)
    one = capsys.readouterr()
    assert one.out == "" and one.err.startswith("// ----- after two\nmodule {") and "after one" not in one.err
    Runner(print_after="all").run_passes(module, passes)
    both = capsys.readouterr().err
    assert both.index("after one") < both.index("after two")


def test_dumps_are_numbered_and_can_be_read_back(module: ir.Module, tmp_path: pathlib.Path) -> None:
    runner = Runner(dump=tmp_path / "new" / "dump")
    runner.run_passes(module, parse_passes("convert-spconv-to-stages,cse"))
    files = sorted((tmp_path / "new" / "dump").iterdir())
    assert [file.name for file in files] == ["00-convert-spconv-to-stages.mlir", "01-cse.mlir"]
    for file in files:
        assert "spconv.gemm" in str(ir.Module.parse(file.read_text()))


def test_the_input_of_a_failing_pass_is_dumped(module: ir.Module, tmp_path: pathlib.Path) -> None:
    with pytest.raises(VerifyError):
        Runner(dump=tmp_path).run_passes(module, [Upstream("fine", "cse"), Act(break_rule)])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["00-fine.mlir", "01-FAILED-act-input.mlir"]
    replayed = ir.Module.parse((tmp_path / "01-FAILED-act-input.mlir").read_text())
    assert "tensor<32x3x3x3x16xbf16>" in str(replayed)
