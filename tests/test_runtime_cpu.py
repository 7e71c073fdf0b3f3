"""Loaded code objects, buffers, and launch plans run group by group."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from spconv_compiler.errors import LaunchError
from spconv_compiler.plan import Argument, Buffer, Launch, Plan
from spconv_compiler.runtime.cpu import ALIGNMENT, CpuBuffer, CpuModule
from spconv_compiler.runtime.plan import CpuPlan
from spconv_compiler.runtime.program import make_program

# count(status) adds 1 to status[0]. make(list, status, capacity, wanted) fills list[0 .. wanted) with 7 or asks for
# room, and counts its calls in status[1]. total(list, scale, out, wanted) sums list into out[0], times scale[0].
KERNELS = """
module {
  module @kernels {
    llvm.func @answer() -> i64 { %0 = llvm.mlir.constant(ANSWER : i64) : i64  llvm.return %0 : i64 }
    llvm.func @fail() -> i64 { %0 = llvm.mlir.constant(-2 : i64) : i64  llvm.return %0 : i64 }
    llvm.func @always_more() -> i64 { %0 = llvm.mlir.constant(5 : i64) : i64  llvm.return %0 : i64 }
    llvm.func @make(%list: !llvm.ptr, %status: !llvm.ptr, %capacity: i64, %wanted: i64) -> i64 {
      %zero = llvm.mlir.constant(0 : i64) : i64
      %one = llvm.mlir.constant(1 : i64) : i64
      %seven = llvm.mlir.constant(7 : i64) : i64
      %calls = llvm.load %status : !llvm.ptr -> i64
      %next = llvm.add %calls, %one : i64
      llvm.store %next, %status : i64, !llvm.ptr
      %small = llvm.icmp "slt" %capacity, %wanted : i64
      llvm.cond_br %small, ^ask, ^loop(%zero : i64)
    ^ask:
      llvm.return %wanted : i64
    ^loop(%i: i64):
      %go = llvm.icmp "slt" %i, %wanted : i64
      llvm.cond_br %go, ^fill, ^done
    ^fill:
      %place = llvm.getelementptr %list[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      llvm.store %seven, %place : i64, !llvm.ptr
      %after = llvm.add %i, %one : i64
      llvm.br ^loop(%after : i64)
    ^done:
      llvm.return %zero : i64
    }
    llvm.func @total(%list: !llvm.ptr, %scale: !llvm.ptr, %out: !llvm.ptr, %wanted: i64) -> i64 {
      %zero = llvm.mlir.constant(0 : i64) : i64
      %one = llvm.mlir.constant(1 : i64) : i64
      llvm.br ^loop(%zero, %zero : i64, i64)
    ^loop(%i: i64, %sum: i64):
      %go = llvm.icmp "slt" %i, %wanted : i64
      llvm.cond_br %go, ^add, ^done
    ^add:
      %place = llvm.getelementptr %list[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      %item = llvm.load %place : !llvm.ptr -> i64
      %more = llvm.add %sum, %item : i64
      %after = llvm.add %i, %one : i64
      llvm.br ^loop(%after, %more : i64, i64)
    ^done:
      %factor = llvm.load %scale : !llvm.ptr -> i64
      %result = llvm.mul %sum, %factor : i64
      llvm.store %result, %out : i64, !llvm.ptr
      llvm.return %zero : i64
    }
  }
}
"""


def compiled(answer: int) -> bytes:
    from spconv_compiler.bindings import ir
    from spconv_compiler.codegen_cpu import emit_cpu
    from spconv_compiler.context import make_context
    from spconv_compiler.targets import CpuTarget, get_target

    target = get_target("cpu")
    assert isinstance(target, CpuTarget)
    with make_context(), ir.Location.unknown():
        return emit_cpu(ir.Module.parse(KERNELS.replace("ANSWER", str(answer))), target)


@pytest.fixture(scope="module")
def code() -> bytes:
    return compiled(1)


@pytest.fixture(scope="module")
def other_code() -> bytes:
    return compiled(2)


def answer(module: CpuModule) -> int:
    return int(module.function("answer", ())())


def buffers(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument("buffer", name, "i64") for name in names)


def symbols(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument("symbol", name, "i64") for name in names)


PLAN = Plan(
    inputs=(("scale", "i64"), ("out", "i64")),
    buffers=(Buffer("list", "i64", ["floordiv", "rows", 4], grows=True), Buffer("status", "i64", 1)),
    launches=(
        Launch("make", (), 1, "pairs", buffers("list", "status") + symbols("capacity", "rows")),
        Launch("total", (), 1, "output", buffers("list", "scale", "out") + symbols("rows")),
    ),
)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("dtype", ["f32", "i32", "i64", "bf16", "f16"])
def test_buffers_are_aligned_and_as_large_as_asked(dtype: str) -> None:
    for count in (0, 1, 1000):
        buffer = CpuBuffer(dtype, count)
        assert buffer.pointer % ALIGNMENT == 0
        assert (buffer.array().size, buffer.array().nbytes) == (count, buffer.nbytes)
        if count:
            assert buffer.array().ctypes.data == buffer.pointer


def test_buffer_contents_are_shared() -> None:
    buffer = CpuBuffer("i32", 4)
    buffer.array()[:] = [1, 2, 3, 4]
    np.testing.assert_array_equal(buffer.array(), [1, 2, 3, 4])


@pytest.mark.parametrize("count", [2**60, 2**62, 2**70])
def test_buffers_that_do_not_fit(count: int) -> None:
    with pytest.raises(LaunchError, match=f"out of memory: a buffer of {8 * count} bytes"):
        CpuBuffer("i64", count)


def test_objects_that_are_loaded_one_after_another_stay_apart(code: bytes, other_code: bytes) -> None:
    """The dynamic loader takes an object for one that it has when both were loaded from one path."""
    modules = [CpuModule(code if number % 2 else other_code) for number in range(40)]
    assert [answer(module) for module in modules] == [2, 1] * 20


def test_loading_leaves_no_descriptors(code: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    modules = [CpuModule(code) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(modules) == 5


def test_objects_are_loaded_from_a_file_where_memory_cannot_hold_programs(
    code: bytes, other_code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "not allowed here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert [answer(CpuModule(code)), answer(CpuModule(other_code))] == [1, 2]
    monkeypatch.delattr(os, "memfd_create")
    assert answer(CpuModule(other_code)) == 2


def test_objects_are_loaded_from_several_threads_at_once(code: bytes, other_code: bytes) -> None:
    found: list[list[int]] = []

    def work() -> None:
        found.append([answer(CpuModule(item)) for item in (code, other_code) * 5])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 2] * 5] * 4


@pytest.mark.parametrize("content", [b"", b"not an object"])
def test_what_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(LaunchError, match="the kernel cannot be loaded"):
        CpuModule(content)


def test_missing_functions_are_named(code: bytes) -> None:
    with pytest.raises(LaunchError, match="no function 'absent'"):
        CpuModule(code).function("absent", ())


def run_plan(code: bytes, rows: int) -> tuple[int, dict[str, CpuBuffer]]:
    plan, scale, out = CpuPlan(PLAN, CpuModule(code)), np.array([3]), np.zeros(1, np.int64)
    kept = plan.run("pairs", {"rows": rows})
    plan.run("output", {"rows": rows, "scale": address(scale), "out": address(out)}, kept)
    return int(out[0]), kept


def test_groups_hand_on_what_others_read(code: bytes) -> None:
    result, kept = run_plan(code, 100)
    assert result == 3 * 7 * 100
    assert set(kept) == {"list", "status"}


def test_buffers_grow_to_what_the_kernel_asks_for(code: bytes) -> None:
    plan, status = CpuPlan(PLAN, CpuModule(code)), CpuBuffer("i64", 1)
    status.array()[:] = 0
    kept = plan.run("pairs", {"rows": 100}, {"list": CpuBuffer("i64", 99), "status": status})
    assert kept["list"].count == 100
    assert (kept["list"].array() == 7).all()
    assert status.array()[0] == 2, "called once with too little room, once more with enough"
    plan.run("pairs", {"rows": 100}, kept)
    assert status.array()[0] == 3, "enough room from the start"


def test_kept_buffers_are_read_not_made_anew(code: bytes) -> None:
    _, kept = run_plan(code, 8)
    kept["list"].array()[:] = range(8)
    plan, scale, out = CpuPlan(PLAN, CpuModule(code)), np.array([1]), np.zeros(1, np.int64)
    plan.run("output", {"rows": 8, "scale": address(scale), "out": address(out)}, kept)
    assert out[0] == sum(range(8))


def test_unknown_groups_do_nothing(code: bytes) -> None:
    assert CpuPlan(PLAN, CpuModule(code)).run("weights", {}) == {}


@pytest.mark.parametrize(
    ("kernel", "message"),
    [("fail", r"kernel fail ran out of memory or threads \(code -2\)"), ("always_more", "asks for 5 elements")],
)
def test_kernels_that_give_up(code: bytes, kernel: str, message: str) -> None:
    plan = CpuPlan(Plan((), (), (Launch(kernel, (), 1, "output", ()),)), CpuModule(code))
    with pytest.raises(LaunchError, match=message):
        plan.run("output", {})


def test_a_plan_of_another_compiler_is_refused(code: bytes) -> None:
    with pytest.raises(LaunchError, match="no function 'newer'"):
        CpuPlan(Plan((), (), (Launch("newer", (), 1, "output", ()),)), CpuModule(code))


# A list that grows, one that is scratch and as large as it has to be, and room that another group reads.
WITH_SCRATCH = Plan(
    inputs=PLAN.inputs,
    buffers=(
        *PLAN.buffers,
        Buffer("spare", "i64", ["add", ["mul", "rows", 2], ["min", "rows", ["ceildiv", "rows", 3]]]),
        Buffer("other", "i64", ["mul", ["mod", "rows", 64], 64]),
        Buffer("spare_status", "i64", 1),
    ),
    launches=(
        Launch("make", (), 1, "first", buffers("spare", "spare_status") + symbols("enough", "twice")),
        Launch("make", (), 1, "first", buffers("other", "spare_status") + symbols("enough", "rows")),
        *PLAN.launches,
        Launch("total", (), 1, "last", buffers("other", "scale", "out") + symbols("rows")),
    ),
)


@pytest.mark.parametrize("rows", [0, 1, 100, 1000])
def test_programs_do_what_plans_do(code: bytes, rows: int) -> None:
    module, groups = CpuModule(code), ("first", "pairs")
    plan = CpuPlan(WITH_SCRATCH, module)
    run, again = make_program(WITH_SCRATCH, module, groups), make_program(WITH_SCRATCH, module, ("output", "last"))
    scale, out = np.array([3]), np.zeros(1, np.int64)
    values = {"rows": rows, "twice": 2 * rows, "enough": 1 << 20, "scale": address(scale), "out": address(out)}
    found = run(values)
    assert set(found) == set(plan.run(groups, values)) == {"list", "status", "other", "spare_status"}
    assert found["list"].count == max(rows, rows // 4) and (found["list"].array() == 7).all()
    assert again({**values, **{name: buffer.pointer for name, buffer in found.items()}}) == {}
    assert out[0] == 3 * 7 * rows


def test_what_a_program_passes_on_does_not_live_with_what_it_keeps(code: bytes) -> None:
    module, values = CpuModule(code), {"rows": 63, "twice": 126, "enough": 1 << 20}
    found = make_program(WITH_SCRATCH, module, ("first",), also=("spare",), passed=("other",))(values)
    assert set(found) == {"spare", "other", "spare_status"}
    blocks = {name: buffer._block for name, buffer in found.items()}
    assert blocks["spare"] is blocks["spare_status"] is not blocks["other"]
    places = sorted((buffer.pointer, buffer.nbytes) for buffer in found.values() if buffer._block is blocks["spare"])
    assert places[0][0] + places[0][1] <= places[1][0] and all(place % ALIGNMENT == 0 for place, _ in places)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [("fail", r"kernel fail ran out of memory or threads \(code -2\)"), ("always_more", "asks for 5 elements")],
)
def test_programs_whose_kernels_give_up(code: bytes, kernel: str, message: str) -> None:
    grows = Plan((), (Buffer("list", "i64", 5, grows=True),), (Launch(kernel, (), 1, "output", buffers("list")),))
    for plan in (Plan((), (), (Launch(kernel, (), 1, "output", ()),)), grows):
        with pytest.raises(LaunchError, match=message):
            make_program(plan, CpuModule(code), ("output",))({})
