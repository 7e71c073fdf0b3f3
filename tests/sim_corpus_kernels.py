"""Bodies of the kernels in sim_corpus.py, in MLIR, and what numpy says of their results.

A body has %tid, %lane, %group, and the pointers %in and %out.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def at(pointer: str, index: str, type_: str, name: str) -> str:
    """MLIR: the address of an element."""
    return f"%{name} = llvm.getelementptr {pointer}[{index}] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, {type_}\n"


def local_array(name: str, shape: str) -> str:
    """MLIR: an array in local memory."""
    return f"llvm.mlir.global internal @{name}() {{addr_space = 3 : i32, alignment = 16 : i64}} : !llvm.array<{shape}>"


def elementwise(type_in: str, type_out: str, body: str) -> str:
    """MLIR: %x is loaded for every thread, %y is stored."""
    return (
        at("%in", "%tid", type_in, "p")
        + f"%x = llvm.load %p : !llvm.ptr<1> -> {type_in}\n"
        + body
        + at("%out", "%tid", type_out, "q")
        + f"llvm.store %y, %q : {type_out}, !llvm.ptr<1>\n"
    )


RNG = np.random.default_rng(5)
FLOATS = RNG.uniform(-6, 6, 64).astype(np.float32)


def bf16_of(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bits of the nearest bfloat16, uint16."""
    bits = np.ascontiguousarray(values.astype(np.float32)).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def as_f32(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


SILU = elementwise(
    "f32",
    "f32",
    """
%one = arith.constant 1.0 : f32
%minus = arith.negf %x : f32
%e = math.exp %minus : f32
%d = arith.addf %e, %one : f32
%y = arith.divf %x, %d : f32
""",
)
GELU = elementwise(
    "f32",
    "bf16",
    """
%one = arith.constant 1.0 : f32
%half = arith.constant 0.5 : f32
%a = arith.constant 0.044715 : f32
%b = arith.constant 2.302208198 : f32
%x2 = arith.mulf %x, %x : f32
%i1 = arith.mulf %x2, %a : f32
%i2 = arith.addf %i1, %one : f32
%i3 = arith.mulf %x, %i2 : f32
%i4 = arith.mulf %i3, %b : f32
%e = rocdl.exp2 %i4 f32 -> f32
%d = arith.addf %e, %one : f32
%r = rocdl.rcp %d f32 -> f32
%s = arith.subf %one, %r : f32
%v = arith.mulf %x, %s : f32
%w = arith.maximumf %v, %v : f32
%y = arith.truncf %w : f32 to bf16
""",
)


def gelu_result(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = x.astype(np.float64)
    return bf16_of(wide * (1 - 1 / (1 + 2 ** (2.302208198 * wide * (1 + 0.044715 * wide**2)))))


DOUBLES = elementwise(
    "f64",
    "f64",
    """
%two = arith.constant 2.5 : f64
%q = arith.divf %two, %x : f64
%f = math.fma %q, %x, %two : f64
%r = math.sqrt %f : f64
%m = arith.maximumf %r, %q : f64
%y = arith.addf %m, %x : f64
""".replace("%q", "%quotient"),
)
HALVES = elementwise(
    "vector<2xf16>",
    "vector<2xf16>",
    """
%k = arith.constant dense<[1.5, -2.0]> : vector<2xf16>
%a = arith.mulf %x, %k : vector<2xf16>
%b = arith.addf %a, %x : vector<2xf16>
%c = math.fma %b, %k, %a : vector<2xf16>
%y = arith.maxnumf %c, %x : vector<2xf16>
""",
)


def halves_result(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    k = np.tile(np.array([1.5, -2.0], np.float16), len(x) // 2)
    a = x * k
    b = a + x
    return np.asarray(np.maximum((b.astype(np.float64) * k + a).astype(np.float16), x))


INTEGER_DIVISION = elementwise(
    "i32",
    "i32",
    """
%k = arith.constant 37 : i32
%d = arith.addi %lane, %k : i32
%a = arith.divui %x, %d : i32
%b = arith.remsi %x, %d : i32
%y = arith.addi %a, %b : i32
""",
)
HASH = elementwise(
    "i64",
    "i64",
    """
%k = arith.constant 0x9E3779B97F4A7C15 : i64
%s = arith.constant 29 : i64
%a = arith.muli %x, %k : i64
%b = arith.shrui %a, %s : i64
%c = arith.xori %a, %b : i64
%n = arith.constant 1000003 : i64
%wide = arith.extui %lane : i32 to i64
%m = arith.addi %n, %wide : i64
%y = arith.remui %c, %m : i64
""",
)


def hash_result(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    a = x * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((a ^ a >> np.uint64(29)) % (np.uint64(1000003) + np.arange(64, dtype=np.uint64)))


MIXED_BYTES = elementwise(
    "vector<4xi8>",
    "f32",
    "".join(
        f"""%b{n} = vector.extract %x[{n}] : i8 from vector<4xi8>
%f{n} = arith.{"uitofp" if n % 2 else "sitofp"} %b{n} : i8 to f32
"""
        for n in range(4)
    )
    + """
%s0 = arith.addf %f0, %f1 : f32
%s1 = arith.mulf %f2, %f3 : f32
%y = arith.subf %s0, %s1 : f32
""",
)


def mixed_bytes_result(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    signed, plain = raw.view(np.int8).reshape(64, 4).astype(np.float32), raw.reshape(64, 4).astype(np.float32)
    return signed[:, 0] + plain[:, 1] - signed[:, 2] * plain[:, 3]


SHORTS = elementwise(
    "vector<2xi16>",
    "vector<2xi16>",
    """
%k = arith.constant dense<[3, -5]> : vector<2xi16>
%t = arith.constant dense<[2, 9]> : vector<2xi16>
%a = arith.muli %x, %k : vector<2xi16>
%b = arith.shrsi %a, %t : vector<2xi16>
%c = arith.maxsi %b, %x : vector<2xi16>
%y = arith.addi %c, %k : vector<2xi16>
""",
)


def shorts_result(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    k = np.tile(np.array([3, -5], np.int16), len(x) // 2)
    t = np.tile(np.array([2, 9], np.int16), len(x) // 2)
    return np.asarray(np.maximum((x * k) >> t, x) + k)


SATURATED = elementwise(
    "i32",
    "i32",
    """
%k = arith.constant 0x70000000 : i32
%a = llvm.intr.uadd.sat(%x, %k) : (i32, i32) -> i32
%b = llvm.intr.ssub.sat(%a, %k) : (i32, i32) -> i32
%c = llvm.intr.fshr(%b, %x, %lane) : (i32, i32, i32) -> i32
%y = llvm.intr.bitreverse(%c) : (i32) -> i32
""",
)


def saturated_result(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = []
    for lane, value in enumerate(map(int, x)):
        a = min(value + 0x70000000, 2**32 - 1)
        signed = a - 2**32 if a >> 31 else a
        b = max(signed - 0x70000000, -(2**31)) % 2**32
        c = ((b << 32 | value) >> lane % 32) % 2**32
        out.append(int(f"{c:032b}"[::-1], 2))
    return np.array(out, np.uint32)
