"""The launch plan: expressions, requirements, JSON, and what is read off IR of the levels gpu and loops."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spconv_compiler.errors import LaunchError, VerifyError
from spconv_compiler.plan import Argument, Buffer, Launch, Plan, Requirement, compiled, evaluate, extract_plan

SIZE = "affine_map<()[rows, cells, threads] -> ({})>"


def size(text: str) -> str:
    return SIZE.format(text)


def plan_of(text: str) -> Plan:
    from spconv_compiler.bindings import ir
    from spconv_compiler.context import make_context

    with make_context(), ir.Location.unknown():
        return extract_plan(ir.Module.parse(text))


def expression(text: str) -> object:
    """The plan expression of an affine expression over rows, cells and threads."""
    plan = plan_of(
        f"""
        func.func @conv(%a: !spconv.buffer<f32> {{spconv.name = "a"}}) {{
          %0 = "spconv.alloc"() {{name = "b", size = {size(text)}}} : () -> !spconv.buffer<f32>
          return
        }}
        """
    )
    return plan.buffers[0].size


NAMES = ("rows", "cells", "threads")
leaves = st.one_of(st.integers(0, 9), st.sampled_from(NAMES))
numbers = st.integers(1, 9)


def compose(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("({} * {})".format, inner, numbers),
        st.builds("({} {} {})".format, inner, st.sampled_from(["floordiv", "ceildiv", "mod"]), numbers),
    )


def by_hand(text: str, values: dict[str, int]) -> int:
    """Python's own value of the text; ceildiv(a, b) is (a + b - 1) // b."""
    tokens = text.replace("(", " ( ").replace(")", " ) ").split()

    def take() -> int:
        token = tokens.pop(0)
        if token != "(":
            return values[token] if token in values else int(token)
        left, operator, right = take(), tokens.pop(0), take()
        assert tokens.pop(0) == ")"
        return {
            "+": left + right,
            "*": left * right,
            "floordiv": left // max(right, 1),
            "ceildiv": (left + max(right, 1) - 1) // max(right, 1),
            "mod": left % max(right, 1),
        }[operator]

    return take()


@settings(deadline=None, max_examples=60)
@given(st.recursive(leaves.map(str), compose, max_leaves=5), st.tuples(*[st.integers(0, 10**12)] * 3))
def test_expressions_keep_their_value(text: str, numbers: tuple[int, ...]) -> None:
    """MLIR may simplify; the number must stay."""
    values = dict(zip(NAMES, numbers, strict=True))
    assert evaluate(expression(text), values) == by_hand(text, values)


def test_numbers_beyond_32_bits_do_not_wrap() -> None:
    assert evaluate(["mul", ["add", "rows", 1], 2**40], {"rows": 2**30}) == (2**30 + 1) * 2**40
    assert evaluate(["ceildiv", "rows", 16], {"rows": 2**62 + 1}) == 2**58 + 1
    assert evaluate(["min", "rows", 7], {"rows": 9}) == 7


def test_unknown_operators_are_refused() -> None:
    with pytest.raises(ValueError, match="pow"):
        evaluate(["pow", 2, 3], {})


GPU = f"""
func.func @conv(%coords: !spconv.buffer<i32> {{spconv.name = "coords"}}, %w: !spconv.buffer<bf16> {{spconv.name = "w"}},
                %out: !spconv.buffer<f32> {{spconv.name = "out"}}) attributes {{
    spconv.requires = [{{size = {size("cells * 4")}, limit = 4294967295 : i64, message = "the grid is too large"}}]}} {{
  %rows = "spconv.symbol"() {{name = "rows"}} : () -> i32
  %extent = "spconv.symbol"() {{name = "extent_z"}} : () -> i64
  %grid = "spconv.alloc"() {{name = "grid", size = {size("cells")}}} : () -> !spconv.buffer<i32>
  %again = "spconv.alloc"() {{name = "grid", size = {size("rows * 27")}, grows}} : () -> !spconv.buffer<i64>
  %named = "spconv.alloc"() {{name = "rows", size = {size("threads")}}} : () -> !spconv.buffer<f16>
  %0 = "spconv.argument"(%coords) : (!spconv.buffer<i32>) -> !spconv.argument
  %1 = "spconv.argument"(%rows) : (i32) -> !spconv.argument
  %2 = "spconv.argument"(%extent) : (i64) -> !spconv.argument
  %3 = "spconv.argument"(%again) : (!spconv.buffer<i64>) -> !spconv.argument
  %4 = "spconv.argument"(%named) : (!spconv.buffer<f16>) -> !spconv.argument
  "spconv.launch"(%0, %1, %3) {{kernel = @kernels::@map, group = "pairs", block = 256,
      grid = [{size("rows ceildiv 256")}, {size("27")}]}}
      : (!spconv.argument, !spconv.argument, !spconv.argument) -> ()
  "spconv.launch"(%2, %4) {{kernel = @gemm, grid = [affine_map<()[rows, cells, threads] -> (rows, 4096)>]}}
      : (!spconv.argument, !spconv.argument) -> ()
  return
}}
gpu.module @kernels {{
}}
"""


def test_everything_is_read_off_the_ir() -> None:
    assert plan_of(GPU) == Plan(
        inputs=(("coords", "i32"), ("w", "bf16"), ("out", "f32")),
        buffers=(
            Buffer("grid", "i32", "cells"),
            Buffer("grid_1", "i64", ["mul", "rows", 27], grows=True),
            # A buffer that is called like a symbol gets another name: a run looks both up in one table.
            Buffer("rows_1", "f16", "threads"),
        ),
        launches=(
            Launch(
                "map",
                (["ceildiv", "rows", 256], 27),
                256,
                "pairs",
                (
                    Argument("buffer", "coords", "i32"),
                    Argument("symbol", "rows", "i32"),
                    Argument("buffer", "grid_1", "i64"),
                ),
            ),
            Launch(
                "gemm",
                (["min", "rows", 4096],),
                1,
                "output",
                (Argument("symbol", "extent_z", "i64"), Argument("buffer", "rows_1", "f16")),
            ),
        ),
        requires=(Requirement(["mul", "cells", 4], 2**32 - 1, "the grid is too large"),),
    )


def test_functions_of_the_cpu_are_launched_without_a_grid() -> None:
    found = plan_of(
        """
        func.func @conv(%a: !spconv.buffer<f32> {spconv.name = "a"}) {
          %0 = "spconv.argument"(%a) : (!spconv.buffer<f32>) -> !spconv.argument
          "spconv.launch"(%0) {kernel = @kernels::@f, grid = [], group = "weights"} : (!spconv.argument) -> ()
          return
        }
        module @kernels {
          func.func @f(%p: !llvm.ptr) { return }
        }
        """
    )
    assert found.launches == (Launch("f", (), 1, "weights", (Argument("buffer", "a", "f32"),)),)


def test_json_round_trip() -> None:
    plan = plan_of(GPU)
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(plan.to_json().encode()) == plan


def test_json_notices_every_field() -> None:
    """A field that from_json forgets would come back as its default."""
    plan = plan_of(GPU)
    text = json.loads(plan.to_json())
    assert set(text) == {field.name for field in dataclasses.fields(Plan)}
    for name, class_ in (("buffers", Buffer), ("launches", Launch), ("requires", Requirement)):
        assert set(text[name][0]) == {field.name for field in dataclasses.fields(class_)}


def test_a_plan_is_read_without_mlir() -> None:
    program = """
import sys
from spconv_compiler.plan import Plan
assert Plan.from_json(sys.stdin.read()).launches[0].kernel == "map"
assert not [name for name in sys.modules if name.startswith(("flydsl", "torch"))]
"""
    text = plan_of(GPU).to_json()
    subprocess.run([sys.executable, "-c", program], input=text, text=True, check=True, timeout=60)


def test_requirements() -> None:
    plan = plan_of(GPU)
    plan.check({"cells": 2**30 - 1, "rows": 1, "threads": 1})
    with pytest.raises(LaunchError, match="the grid is too large: found 4294967296, accepted: at most 4294967295"):
        plan.check({"cells": 2**30, "rows": 1, "threads": 1})


ONE = 'func.func @conv(%a: !spconv.buffer<f32> {spconv.name = "a"}) { return }'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu.module @kernels { }", "0 functions"),
        (ONE + ONE.replace("@conv", "@other"), "2 functions"),
        ("func.func @conv(%a: !spconv.buffer<f32>) { return }", "spconv.name"),
        ('func.func @conv(%a: tensor<?x4xf32> {spconv.name = "a"}) { return }', "no plan"),
        ("func.func @conv() { return }", "no plan"),
        ('func.func private @conv(!spconv.buffer<f32> {spconv.name = "a"})', "no plan"),
    ],
)
def test_what_is_no_plan(text: str, words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        plan_of(text)


def test_compiled_expressions_give_what_evaluate_gives() -> None:
    symbols = {"rows": 1000, "cells": 77, "threads": 3}
    exprs = [
        5,
        "rows",
        ["add", "rows", ["mul", "cells", -2]],
        ["ceildiv", ["mul", "rows", 27], 16],
        ["ceildiv", ["add", "cells", -100], 8],
        ["floordiv", ["add", "cells", -100], 8],
        ["mod", "rows", "cells"],
        ["min", "rows", ["mul", ["add", "cells", 1], ["floordiv", "rows", "threads"]]],
    ]
    assert compiled(exprs)(symbols) == tuple(evaluate(expr, symbols) for expr in exprs)
    assert compiled([])(symbols) == ()
    with pytest.raises(ValueError, match="unknown operator"):
        compiled([["power", "rows", 2]])
    with pytest.raises(KeyError, match="coarse_rows"):
        compiled(["coarse_rows"])(symbols)
