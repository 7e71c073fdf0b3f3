"""The kernel builder: what it builds is run on this host and compared with Python integers and numpy."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from spconv_compiler.bindings import ExecutionEngine, PassManager, func, ir, llvm
from spconv_compiler.context import make_context
from spconv_compiler.passes import kernel_builder as kb
from spconv_compiler.passes.kernel_builder import V, const, f32, i1, i32, i64, load, store, vec

TO_LLVM = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-cf-to-llvm,convert-func-to-llvm,reconcile-unrealized-casts"
)
CTYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "i1": ctypes.c_bool}
M32 = 2**32 - 1


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with make_context(), ir.Location.unknown():
        yield


def pointer() -> ir.Type:
    return llvm.PointerType.get()


def compiled(arguments: Sequence[ir.Type], body: Callable[..., V | None]) -> Callable[..., Any]:
    """A function of numbers and numpy arrays, made of what `body` builds."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function = func.FuncOp("f", (list(arguments), []))
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            result = body(*[V(argument) for argument in block.arguments])
            func.ReturnOp([] if result is None else [result.value])
        results = [] if result is None else [result.type]
        returned = None if result is None else CTYPES[str(result.type)]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(arguments), results))
    module.operation.verify()
    PassManager.parse(f"builtin.module({TO_LLVM})").run(module.operation)
    engine = ExecutionEngine(module, opt_level=1)
    # Lowering has destroyed the values; only what was read before may be used.
    types = [CTYPES.get(str(type_), ctypes.c_void_p) for type_ in arguments]
    # The engine wraps the function in one that takes an array of pointers: to each argument, then to the result.
    packed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.raw_lookup("f"))

    def call(*values: Any) -> Any:
        assert engine is not None  # keeps the code alive
        plain = [value.ctypes.data if isinstance(value, np.ndarray) else value for value in values]
        boxes = [type_(value) for type_, value in zip(types, plain, strict=True)]
        boxes += [] if returned is None else [returned()]
        packed((ctypes.c_void_p * len(boxes))(*[ctypes.addressof(box) for box in boxes]))
        return None if returned is None else boxes[-1].value

    return call


def signed(value: int) -> int:
    return (value & M32) - ((value & 2**31) << 1)


NUMBERS = [(7, 3), (-7, 3), (2**31 - 1, 1), (-(2**31), 5), (-1, 31), (100, 7)]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b: a + b, lambda a, b: a + b),
        (lambda a, b: a - b, lambda a, b: a - b),
        (lambda a, b: a * b, lambda a, b: a * b),
        (lambda a, b: a // b, lambda a, b: (a & M32) // (b & M32)),
        (lambda a, b: a % b, lambda a, b: (a & M32) % (b & M32)),
        (lambda a, b: a & b, lambda a, b: a & b),
        (lambda a, b: a | b, lambda a, b: a | b),
        (lambda a, b: a ^ b, lambda a, b: a ^ b),
        (lambda a, b: a << b, lambda a, b: a << b),
        (lambda a, b: a >> b, lambda a, b: (a & M32) >> b),
        (lambda a, b: 3 + a, lambda a, b: 3 + a),
        (lambda a, b: 3 - a, lambda a, b: 3 - a),
        (lambda a, b: 3 * a, lambda a, b: 3 * a),
        (lambda a, b: a.min(b), min),
        (lambda a, b: a.max(b), max),
        (lambda a, b: (a < b).select(a, 9), lambda a, b: a if a < b else 9),
        (lambda a, b: (a <= b).select(1, b), lambda a, b: 1 if a <= b else b),
        (lambda a, b: (a > 3).to(i32()), lambda a, b: int(a > 3)),
        (lambda a, b: (a >= b).to(i32()), lambda a, b: int(a >= b)),
        (lambda a, b: a.eq(b).to(i32()), lambda a, b: int(a == b)),
        (lambda a, b: a.ne(b).to(i32()), lambda a, b: int(a != b)),
        (lambda a, b: a.ult(b).to(i32()), lambda a, b: int((a & M32) < (b & M32))),
        (lambda a, b: a.compare("uge", b).to(i32()), lambda a, b: int((a & M32) >= (b & M32))),
        (lambda a, b: (a.eq(7) & b.eq(3)).to(i32(), signed=True), lambda a, b: -int(a == 7 and b == 3)),
    ],
)
def test_integers(build: Callable[[V, V], V], expected: Callable[[int, int], int]) -> None:
    f = compiled([i32(), i32()], build)
    for a, b in NUMBERS:
        assert f(a, b) == signed(expected(a, b)), (a, b)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a: a.to(i64()), lambda a: a & M32),
        (lambda a: a.to(i64(), signed=True), lambda a: a),
        (lambda a: a.to(ir.IndexType.get()).to(i64()), lambda a: a & M32),
        (lambda a: a.to(ir.IndexType.get(), signed=True).to(i64()), lambda a: a),
        (lambda a: a.to(i64(), signed=True).to(i32()).to(i64(), signed=True), lambda a: a),
        (lambda a: a.to(i32()).to(i64()), lambda a: a & M32),
    ],
)
def test_widths(build: Callable[[V], V], expected: Callable[[int], int]) -> None:
    f = compiled([i32()], build)
    for a in (0, 5, -1, 2**31 - 1, -(2**31)):
        assert f(a) == expected(a)


def test_floats() -> None:
    # Their products are exact in f32.
    values = [0.5, -1.5, 3.0, 1024.0, float("inf"), float("nan")]
    f = compiled([f32(), f32()], lambda a, b: kb.fma(a, b, const(0.25, f32())) - 2 * a + (a < b).select(1.0, a))
    for a in values:
        for b in values:
            with np.errstate(all="ignore"):
                expected = np.float32(a * b + 0.25 - 2 * a + (1.0 if a < b else a))
            np.testing.assert_equal(np.float32(f(a, b)), expected)


def test_fma_rounds_once() -> None:
    f = compiled([f32(), f32()], lambda a, b: kb.fma(a, a, b))
    assert f(1 + 2**-12, -1.0) == 2**-11 + 2**-24
    g = compiled([f32(), f32()], lambda a, b: a * a + b)
    assert g(1 + 2**-12, -1.0) == 2**-11


def test_floats_of_other_widths_and_bits() -> None:
    f = compiled([f32()], lambda a: a.to(ir.F16Type.get()).to(f32()))
    assert f(0.1) == np.float16(0.1) and f(1e6) == np.inf
    g = compiled([f32()], lambda a: a.bitcast(i32()))
    assert g(1.5) == struct.unpack("<i", struct.pack("<f", 1.5))[0]


def test_minimum_and_maximum_ignore_nan() -> None:
    f = compiled([f32(), f32()], lambda a, b: a.max(b) - a.min(b))
    assert f(2.0, 5.0) == 3.0 and f(float("nan"), 5.0) == 0.0


def test_vectors() -> None:
    def body(p: V, q: V) -> None:
        a = load(p, vec(8, f32()))
        b = load(p, f32(), 8).broadcast(8)
        store(kb.fma(a, b, const(1.0, vec(8, f32()))), q)
        store(a.lane(3), q, 8)
        store(a.bitcast(vec(8, i32())) & 0x7FFFFFFF, q, 9)

    source, result = np.arange(-4, 5, dtype=np.float32), np.zeros(17, np.float32)
    compiled([pointer(), pointer()], body)(source, result)
    np.testing.assert_array_equal(result[:8], source[:8] * source[8] + 1)
    assert result[8] == source[3]
    np.testing.assert_array_equal(result[9:], np.abs(source[:8]))


def test_loops_carry_values() -> None:
    def body(p: V, n: V) -> V:
        with kb.for_(1, n, 3, [const(0, i64()), const(1, i64())]) as loop:
            total, count = loop.args
            store(loop.iv, p, count)
            loop.yields(total + loop.iv, count + 1)
        return loop.results[0] * 1000 + loop.results[1]

    f = compiled([pointer(), i64()], body)
    for n in (0, 1, 2, 11):
        steps = list(range(1, n, 3))
        seen = np.zeros(8, np.int64)
        assert f(seen, n) == sum(steps) * 1000 + len(steps) + 1
        assert seen[1 : len(steps) + 1].tolist() == steps and not seen[len(steps) + 1 :].any()


def test_loop_without_values_and_unrolling_switched_off() -> None:
    def body(p: V, n: V) -> None:
        with kb.for_(0, n, unroll=False) as loop, kb.if_((loop.iv % 2).eq(0)):
            store(loop.iv * loop.iv, p, loop.iv)

    squares = np.zeros(6, np.int64)
    compiled([pointer(), i64()], body)(squares, 6)
    assert squares.tolist() == [0, 0, 4, 0, 16, 0]


def test_if_else_takes_one_side_only() -> None:
    def body(p: V, a: V) -> V:
        def positive() -> list[V]:
            store(const(1, i32()), p, 0)
            return [a * 2, a]

        def other() -> list[V]:
            store(const(1, i32()), p, 1)
            return [a, a - 5]

        double, rest = kb.if_else(a > 0, positive, other)
        return double * 100 + rest

    f = compiled([pointer(), i32()], body)
    for a in (4, -4):
        sides = np.zeros(2, np.int32)
        assert f(sides, a) == (a * 200 + a if a > 0 else a * 100 + a - 5)
        assert sides.tolist() == [int(a > 0), int(a <= 0)]


def test_while() -> None:
    def body(a: V, b: V) -> V:
        """Euclid's algorithm."""
        gcd, _ = kb.while_([a, b], lambda x, y: (y.ne(0), [x, y]), lambda x, y: [y, x % y])
        return gcd

    f = compiled([i64(), i64()], body)
    assert [f(12, 18), f(17, 5), f(9, 0)] == [6, 1, 9]


def test_pointers_take_both_index_widths_and_unaligned_vectors() -> None:
    def body(p: V, i: V, j: V) -> V:
        address = kb.gep(p, 2, i32())
        total = load(address, i32(), i) + load(address, i32(), j)
        return total + load(p, vec(4, i32()), 1).lane(3) + load(p, vec(4, i32()), 4, align=16).lane(0)

    data = np.arange(64, dtype=np.int32) * 10
    data = data[(-data.ctypes.data // 4) % 4 :]
    f = compiled([pointer(), i32(), i64()], body)
    # An i32 index is signed: −1 is the element before.
    assert f(data, -1, 3) == data[1] + data[5] + data[4] + data[4]


def test_misuse_is_an_error() -> None:
    with ir.InsertionPoint(ir.Module.create().body):
        number, real, wide = const(1, i32()), const(1.0, f32()), const(1, i64())
        with pytest.raises(TypeError, match="operands have types i32 and i64"):
            number + wide
        with pytest.raises(TypeError, match="no such operation on f32"):
            real % 2
        with pytest.raises(TypeError, match="no conversion from f32 to i32; use bitcast"):
            real.to(i32())
        with pytest.raises(TypeError, match="select needs a value on one side"):
            const(1, i1()).select(1, 2)
        with (
            pytest.raises(ValueError, match=r"must end with yields\(...\)"),
            kb.for_(0, wide, init=[number]),
        ):
            pass
