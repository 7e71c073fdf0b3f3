"""One instruction at a time, and plain Python integers to compare with: helpers of test_sim_vector and others."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable

import numpy as np
from sim_kernels import make_kernel

from spconv_compiler.sim.instruction import EXEC
from spconv_compiler.sim.interpreter import Program
from spconv_compiler.sim.machine import WHOLE, Active, Batch
from spconv_compiler.sim.memory import Memory
from spconv_compiler.sim.rows import DWORDS, Row

M32, M64 = 2**32 - 1, 2**64 - 1
EDGES = [0, 1, 2, 7, 31, 32, 33, 63, 64, 0xFFFF, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, M32]
FLOATS = [0.0, -0.0, 1.0, -1.5, 3.4e38, 1e-40, 65519.0, 65520.0, 1.00390625, math.inf, -math.inf, math.nan]


def s32(a: int) -> int:
    return (a + 2**31) % 2**32 - 2**31


def s64(a: int) -> int:
    return (a + 2**63) % 2**64 - 2**63


def f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def f32_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def bf16(bits: int) -> int:
    """The nearest of the two neighbours, the even one of equals, on the bits."""
    if math.isnan(f32(bits)):
        return bits >> 16 | 0x40
    low, rest = bits >> 16, bits & 0xFFFF
    return low + (rest > 0x8000 or rest == 0x8000 and low & 1 == 1)


def f16(bits: int) -> int:
    value = f32(bits)
    try:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


def ones(a: int) -> int:
    return bin(a).count("1")


def lowest(a: int) -> int:
    return M32 if a == 0 else (a & -a).bit_length() - 1


def highest(a: int) -> int:
    return M32 if a == 0 else 32 - a.bit_length()


def reverse(a: int) -> int:
    return int(f"{a:032b}"[::-1], 2)


def carry(total: int) -> tuple[int, int]:
    return total & M32, int(not 0 <= total <= M32)


LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
INTEGER_COMPARES: dict[str, Callable[[int, int], bool]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "lg": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
}
FLOAT_COMPARES: dict[str, Callable[[float, float], bool]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: a != b and not unordered(a, b),
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: not unordered(a, b),
    "u": lambda a, b: unordered(a, b),
    "nge": lambda a, b: a < b or unordered(a, b),
    "nlg": lambda a, b: a == b or unordered(a, b),
    "ngt": lambda a, b: a <= b or unordered(a, b),
    "nle": lambda a, b: a > b or unordered(a, b),
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: a >= b or unordered(a, b),
}


def unordered(a: float, b: float) -> bool:
    return math.isnan(a) or math.isnan(b)


def compare(name: str) -> Callable[..., int]:
    """The expectation of v_cmp_…, s_cmp_… and s_cmpk_… from the name."""
    _, _, relation, kind = name.replace("cmpk", "cmp").split("_")
    if kind == "f32":
        return lambda a, b: int(FLOAT_COMPARES[relation](f32(a), f32(b)))
    signed: Callable[[int], int] = {"i32": s32, "i64": s64}.get(kind, lambda a: a)
    return lambda a, b: int(INTEGER_COMPARES[relation](signed(a), signed(b)))


def draw(kind: str, rng: random.Random, row: Row, index: int) -> int:
    if row.name == "v_lshl_add_u64" and index == 1:
        return rng.randrange(5)
    if row.name == "v_perm_b32" and index == 2:
        return int.from_bytes(bytes(rng.randrange(16) for _ in range(4)), "little")
    if kind == "mask":
        return rng.randrange(2)
    if kind == "f32":
        bits = struct.unpack("<I", struct.pack("<f", rng.choice(FLOATS)))[0]
        return bits if rng.random() < 0.5 else rng.getrandbits(32)
    low = rng.choice(EDGES) if rng.random() < 0.6 else rng.getrandbits(32)
    return low if DWORDS[kind] == 1 else low | (rng.choice(EDGES) if rng.random() < 0.6 else rng.getrandbits(32)) << 32


def step(line: str, waves: int = 1) -> tuple[Batch, Callable[[], None]]:
    """A batch of waves, and a function that runs one instruction on it."""
    program = Program(make_kernel(f"{line}\ns_endpgm", vgprs=64, accum_offset=32))
    zeros = np.zeros(waves, np.int64)
    batch = Batch(program.kernel, Memory(), zeros, np.arange(waves), waves)
    batch.set_scalar(EXEC, WHOLE)
    batch.set_scalar(EXEC + 1, WHOLE)
    batch.at = program.instructions[0]
    return batch, lambda: program.steps[0](Active(batch, np.arange(waves)))
