"""The rules of the levels (lit_tests/levels has an accepted and a refused module for each)."""

from __future__ import annotations

import pathlib

import pytest

from spconv_compiler.bindings import ir
from spconv_compiler.context import make_context
from spconv_compiler.errors import VerifyError
from spconv_compiler.levels import LEVELS, check_level
from spconv_compiler.passes.registry import PASS_NAMES, pass_class
from spconv_compiler.targets import get_target, target_names

CONV = """
!coords = !spconv.coords<32>
!features = tensor<?x16xf32>
!weight = tensor<32x3x3x3x16xf32>
func.func @f(%coords: !coords, %features: !features, %weight: !weight) -> tensor<?x32xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight)
    {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">}
    : (!coords, !features, !weight) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}
"""


def test_every_level_has_a_negative_lit_test(repo: pathlib.Path) -> None:
    files = {path.name for path in (repo / "lit_tests" / "levels").glob("*.mlir")}
    assert files == {f"{name}-invalid.mlir" for name in LEVELS}


def test_targets_and_passes_name_existing_levels() -> None:
    for name in target_names():
        assert set(get_target(name).path) <= set(LEVELS)
    for name in PASS_NAMES:
        assert {pass_class(name).needs, pass_class(name).gives} <= {"", *LEVELS}


def test_the_error_names_op_place_level_and_rule() -> None:
    with make_context():
        module = ir.Module.parse(CONV)
        check_level(module, "spconv")
        with pytest.raises(VerifyError) as caught:
            check_level(module, "stages")
    error = caught.value
    assert error.message == "spconv.subm_conv3d is not allowed on the host side at level stages"
    assert error.level == "stages" and "-" in str(error.location) and ":6:" in str(error.location)
    assert error.op is not None and error.op.startswith('%0 = "spconv.subm_conv3d"')
    assert error.notes == (f"level stages: {LEVELS['stages'].says}",)


@pytest.mark.parametrize("name", LEVELS)
def test_an_empty_module_is_at_every_level(name: str) -> None:
    with make_context():
        check_level(ir.Module.parse(""), name)
        check_level(ir.Module.parse("func.func private @declared()"), name)


@pytest.mark.parametrize("name", LEVELS)
def test_no_level_accepts_a_foreign_op(name: str) -> None:
    with make_context():
        tensors = "func.func @f(%a: tensor<4xf32>) {\n %0 = tensor.rank %a : tensor<4xf32>\n return\n}"
        for text in (tensors, "ml_program.func private @f()"):
            module = ir.Module.parse(text)
            with pytest.raises(VerifyError, match=f"on the host side at level {name}"):
                check_level(module, name)


def test_levels_without_kernels_refuse_an_empty_kernel_module() -> None:
    for name, level in LEVELS.items():
        with make_context():
            module = ir.Module.parse("module { module @kernels {} }")
            if level.kernels:
                check_level(module, name)
            else:
                with pytest.raises(VerifyError, match=f"builtin.module is not allowed inside kernels at level {name}"):
                    check_level(module, name)
