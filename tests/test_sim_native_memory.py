"""Native memory handlers against the numpy engine, one instruction at a time.

One device memory serves both: what the numpy engine leaves in it is set aside and undone, and the native handler has
its turn. Data, cells and registers must come out equal, and a fault of one must be a fault of both in the same words.
Addresses, EXEC, definedness and the owners of words are random; among them are places that no access may touch.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from sim_kernels import make_kernel
from sim_memory_harness import ARENA, REGISTERS, WAVES, Native, Random, World, handlers, lanes_mask, make_world

from spconv_compiler.sim import isa_memory
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.instruction import EXEC, M0
from spconv_compiler.sim.interpreter import Program
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.machine import Active, Batch
from spconv_compiler.sim.memory import Allocation
from spconv_compiler.sim.native import layout, library
from spconv_compiler.sim.native.program import NativeProgram

LOCAL = 16376
SCRATCH = 68
RAW = 0x27000


def program_addresses(program: NativeProgram, checks: bool) -> dict[str, int]:
    """Handlers of a program: of the table, and those that are made for it, in one go."""
    found = dict(handlers(checks).addresses)
    return {**found, **library.load_more(library.build_of(checks), program.missing(found)).addresses}


@functools.cache
def programs() -> tuple[Program, NativeProgram, dict[str, int]]:
    """(numpy program, native program, where each line stands) of all instructions, assembled at once."""
    lines = list(dict.fromkeys([line for row in CHECKED for line in KINDS[row.kind][1](row)] + BEHIND))
    text = "\n".join([*lines, "s_endpgm"])
    kernel = make_kernel(text, vgprs=REGISTERS, accum_offset=REGISTERS, lds_bytes=LOCAL, scratch_bytes=SCRATCH)
    return Program(kernel), NativeProgram(kernel), {line: index for index, line in enumerate(lines)}


@functools.cache
def records(checks: bool) -> Any:
    program = programs()[1]
    return program.records(program_addresses(program, checks))


def run_numpy(world: World, wave: int, program: Program, index: int) -> str | None:
    world.batch.at = program.instructions[index]
    try:
        program.steps[index](Active(world.batch, np.array([wave])))
    except Fault as fault:
        text = str(fault).split("\n")[1]
        return text.split(f"wave {wave}", 1)[1].lstrip(":, ")
    return None


def compare(world: World, wave: int, *lines: str) -> str | None:
    """Runs instructions, one after the other, on both engines; the fault that both report."""
    reference, program, index = programs()
    before = world.snapshot()
    wanted = found = None
    for line in lines:
        wanted = wanted or run_numpy(world, wave, reference, index[line])
    after = world.snapshot()
    world.restore(before)
    native = Native(world, wave, program, records(True))
    for line in lines:
        found = found or native.run(index[line])
    native.fetch_local()
    assert found == wanted, lines
    if wanted is None:
        for name, array in world.arrays().items():
            if name.endswith(" of"):
                field = name.removesuffix(" of")
                np.testing.assert_array_equal(getattr(native, field), after[name][:, wave], f"{lines}: {field}")
            else:
                np.testing.assert_array_equal(array, after[name], f"{lines}: {name}")
    return wanted


def place_lanes(world: World, rng: Random, row: Any, given: Allocation | None = None) -> Any:
    """Addresses uint64 [64], mostly inside one allocation and aligned; different ones for stores."""
    size, distinct = row.access.size, row.access.kind == "store"
    fine = rng.random() < 0.6
    target = world.targets[1] if fine else world.targets[rng.integers(len(world.targets))]
    target = given or target
    step = max(size, 4) if size > 2 else size
    slots = target.size // step
    numbers = rng.permutation(slots)[:64] if distinct and slots >= 64 else rng.integers(0, slots, 64)
    if row.access.kind == "atomic" and slots > 64:
        # Sixteen lanes that follow each other, as rows of a gemm's result do.
        for first in rng.permutation(4)[: rng.integers(4)] * 16:
            numbers[first : first + 16] = rng.integers(slots - 16) + np.arange(16)
    places = np.uint64(target.address) + numbers.astype(np.uint64) * np.uint64(step)
    if not fine:
        wrong = rng.random(64) < 0.02
        places = np.where(wrong, places + rng.integers(-64, 4200, 64).astype(np.uint64), places)
        if rng.random() < 0.1:
            places[rng.integers(64)] = rng.integers(0, 2**63, dtype=np.uint64)
    return places


def set_pair(batch: Batch, register: int, wave: int, values: Any) -> None:
    batch.vector[register, wave] = (values & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    batch.vector[register + 1, wave] = (values >> np.uint64(32)).astype(np.uint32)
    batch.vector_defined[register : register + 2, wave] = layout.ALL


def set_scalar_pair(batch: Batch, register: int, value: int) -> None:
    batch.scalar[register], batch.scalar[register + 1] = value & 0xFFFFFFFF, value >> 32


def registers_text(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def set_exec(world: World, wave: int, rng: Random) -> None:
    mask = lanes_mask(rng)
    for part in (0, 1):
        world.batch.scalar[EXEC + part, wave] = mask >> 32 * part & 0xFFFFFFFF


def flags_of(row: Any) -> tuple[str, ...]:
    return {"load": ("", " sc1"), "store": ("", " sc1"), "atomic": ("", " sc0")}[row.access.kind]


def global_lines(row: Any) -> list[str]:
    """Every form: a pair of registers or a scalar base, the old value returned, device scope."""
    found = []
    for flag in flags_of(row):
        for address, base in (("v[4:5]", ", off"), ("v4", ", s[2:3]")):
            if row.kind == "flat" and base != ", off":
                continue
            if row.access.lds:
                found.append(f"{row.name} {address}{base} offset:8{flag}")
                continue
            data = registers_text(8, row.access.dwords * (2 if row.access.pair else 1))
            listed = f"{data}, {address}" if row.access.kind == "load" else f"{address}, {data}"
            if flag == " sc0":
                listed = f"{registers_text(20, row.access.dwords)}, {listed}"
            found.append(f"{row.name} {listed}{'' if row.kind == 'flat' else base} offset:8{flag}")
    return found


def buffer_lines(row: Any) -> list[str]:
    data = registers_text(8, row.access.dwords * (2 if row.access.pair else 1))
    forms = [("v4", "0", " offen"), ("v4", "s20", " offen"), ("v4", "32", " offen"), ("off", "s20", "")]
    start, end = ("", " lds") if row.access.lds else (f"{data}, ", "")
    return [
        f"{row.name} {start}{address}, s[8:11], {scalar}{form} offset:16{flag}{end}"
        for address, scalar, form in forms
        for flag in flags_of(row)
    ]


def local_lines(row: Any) -> list[str]:
    access = row.access
    width = max(1, access.size // 4)
    found = []
    for offsets in ("offset0:1 offset1:4", "offset0:3") if access.count == 2 else ("", "offset:32"):
        if access.kind == "load":
            found.append(f"{row.name} {registers_text(8, access.dwords)}, v4 {offsets}".strip())
            continue
        data = ", ".join(registers_text(first, width) for first in (8, 14)[: 2 if access.pair else access.count])
        result = f"{registers_text(20, width)}, " if access.returns else ""
        found.append(f"{row.name} {result}v4, {data} {offsets}".strip())
    return found


def scalar_lines(row: Any) -> list[str]:
    dwords = row.access.dwords
    base = "s[2:3]" if row.sources == ("u64",) else "s[8:11]"
    start = f"{row.name} {'s16' if dwords == 1 else f's[16:{15 + dwords}]'}, {base},"
    return [f"{start} 0x10", f"{start} s12", f"{start} s12 offset:0xc"]


def scratch_lines(row: Any) -> list[str]:
    """Every form: with a part of the address from the lanes, from a scalar register, from both, or from neither."""
    data = registers_text(8, row.access.dwords)
    return [
        f"{row.name} {f'{data}, {lane}' if row.access.kind == 'load' else f'{lane}, {data}'}, {wave} offset:8"
        for lane in ("v4", "off")
        for wave in ("s20", "off")
    ]


def global_case(row: Any, rng: Random) -> tuple[World, int, str]:
    """A world, a wave, and an instruction in one of its forms."""
    line = str(rng.choice(global_lines(row)))
    world, wave = random_world(rng)
    places = place_lanes(world, rng, row) - np.uint64(8)
    base = world.memory.base - 4096
    if "s[2:3]" in line:
        set_scalar_pair(world.batch, 2, base)
        world.batch.vector[4, wave] = (places - np.uint64(base)).astype(np.uint32)
    else:
        set_pair(world.batch, 4, wave, places)
    world.batch.vector_defined[4:6, wave] = layout.ALL if rng.random() < 0.9 else layout.ALL - 4
    world.batch.scalar_defined[3, wave] = 0xFFFFFFFF if rng.random() < 0.95 else 7
    return world, wave, line


def buffer_case(row: Any, rng: Random) -> tuple[World, int, str]:
    line = str(rng.choice(buffer_lines(row)))
    world, wave = random_world(rng)
    batch = world.batch
    target = world.targets[1] if rng.random() < 0.7 else world.targets[rng.integers(len(world.targets))]
    places = place_lanes(world, rng, row, target)
    if "offen" not in line:
        places[:] = places[0]
        batch.vector[8 : 8 + row.access.dwords, wave] = batch.vector[8 : 8 + row.access.dwords, wave, :1]
    set_scalar_pair(batch, 8, target.address - (48 if "s20" in line else 32 if " 32 " in line else 0))
    offsets = (places - np.uint64(target.address)).astype(np.uint32)
    batch.vector[4, wave] = offsets - np.uint32(16)
    batch.vector_defined[4, wave] = layout.ALL if rng.random() < 0.95 else layout.ALL - 2
    count = target.size if rng.random() < 0.4 else 0xFFFFFFFF if rng.random() < 0.5 else int(rng.integers(4200))
    batch.scalar[10], batch.scalar[11] = count, RAW if rng.random() < 0.97 else RAW + 1
    batch.scalar[20] = 48
    batch.scalar_defined[rng.integers(8, 12), wave] = 0xFFFFFFFF if rng.random() < 0.95 else 5
    batch.scalar_defined[20, wave] = 0xFFFFFFFF if rng.random() < 0.9 else 0
    return world, wave, line


def local_case(row: Any, rng: Random) -> tuple[World, int, str]:
    access = row.access
    line = str(rng.choice(local_lines(row)))
    world, wave = random_world(rng)
    alignment = 16 if access.size == 12 else access.size
    slots = (LOCAL - access.size - 4 * access.size * access.stride - 32) // alignment
    numbers = rng.permutation(slots)[:64]
    places = (numbers * alignment).astype(np.uint32)
    if rng.random() < 0.15:
        places[rng.integers(64)] = rng.choice([LOCAL - 8, LOCAL, 2**31, 2**32 - 1, 3])
    world.batch.vector[4, wave] = places
    world.batch.vector_defined[4, wave] = layout.ALL if rng.random() < 0.95 else layout.ALL - 2
    return world, wave, line


def scratch_case(row: Any, rng: Random) -> tuple[World, int, str]:
    line = str(rng.choice(scratch_lines(row)))
    world, wave = random_world(rng)
    batch, size = world.batch, row.access.size
    moved, step = (4 if "s20" in line else 0), min(size, 4)
    places = rng.integers(-(-12 // step), (SCRATCH - size) // step + 1, 64) * step
    if rng.random() < 0.2:
        places[rng.integers(64)] = rng.choice([SCRATCH - size + step, 2**32 - 1, places[0] + 1])
    batch.vector[4, wave] = (places - 8 - moved).astype(np.uint32)
    batch.vector_defined[4, wave] = layout.ALL if rng.random() < 0.95 else layout.ALL - 2
    batch.scalar[20] = moved if rng.random() < 0.9 else SCRATCH
    batch.scalar_defined[20, wave] = 0xFFFFFFFF if rng.random() < 0.9 else 0
    return world, wave, line


def scalar_buffer_case(row: Any, rng: Random) -> tuple[World, int, str]:
    """Words of a buffer, sometimes beyond its end."""
    world, wave = random_world(rng)
    batch = world.batch
    target = world.targets[rng.integers(len(world.targets))] if rng.random() < 0.5 else world.targets[1]
    line = str(rng.choice(scalar_lines(row)))
    set_scalar_pair(batch, 8, target.address + (2 if rng.random() < 0.05 else 0))
    count = target.size // 4 * 4 if rng.random() < 0.7 else int(rng.integers(4200))
    batch.scalar[10], batch.scalar[11] = count, RAW if rng.random() < 0.97 else RAW + 1
    batch.scalar[12] = rng.integers(0, target.size) if rng.random() < 0.9 else 2**32 - 4
    batch.scalar_defined[rng.integers(8, 12), wave] = 0xFFFFFFFF if rng.random() < 0.95 else 5
    batch.scalar_defined[12, wave] = 0xFFFFFFFF if rng.random() < 0.9 else 3
    return world, wave, line


def scalar_case(row: Any, rng: Random) -> tuple[World, int, str]:
    if row.sources != ("u64",):
        return scalar_buffer_case(row, rng)
    dwords = row.access.dwords
    world, wave = random_world(rng)
    target = world.targets[rng.integers(len(world.targets))] if rng.random() < 0.5 else world.targets[1]
    place = target.address + 4 * int(rng.integers(0, max(1, target.size // 4 - dwords)))
    if rng.random() < 0.1:
        place = int(rng.choice([target.address + 2, target.address + target.size - 4, 0, 2**63]))
    line = str(rng.choice(scalar_lines(row)))
    moved = 0 if "0x10" in line else int(rng.choice([0, 8, 2**32 - 4]))
    world.batch.scalar[12] = moved
    fixed = 16 if "0x10" in line else 12 if "offset" in line else 0
    set_scalar_pair(world.batch, 2, (place - fixed - moved) % 2**64)
    world.batch.scalar_defined[2, wave] = 0xFFFFFFFF if rng.random() < 0.95 else 1
    world.batch.scalar_defined[12, wave] = 0xFFFFFFFF if rng.random() < 0.9 else 3
    return world, wave, line


def aim_at_local(world: World, wave: int, rng: Random) -> None:
    """Where a load to LDS writes, in M0, and addresses in v12 of words there that a write may hit."""
    batch = world.batch
    start = 4 * int(rng.integers(0, (LOCAL - 2048) // 4))
    if rng.random() < 0.15:
        start = int(rng.choice([LOCAL - 1024, LOCAL - 64, LOCAL, 2**31, 2**32 - 4, start + 2]))
    batch.scalar[M0] = start
    batch.scalar_defined[M0, wave] = 0xFFFFFFFF if rng.random() < 0.95 else 0
    near = 4 * int(rng.integers(-64, 256))
    batch.vector[12, wave] = np.clip((start & ~3) + near, 0, LOCAL - 256) + 4 * np.arange(64)
    batch.vector_defined[12, wave] = layout.ALL


def behind(row: Any, rng: Random) -> list[str]:
    """What follows an instruction: for loads to LDS perhaps a write there, and a wait."""
    if not row.access.lds:
        return []
    return [BEHIND[2]] * (rng.random() < 0.4) + [BEHIND[rng.integers(2)]]


def random_world(rng: Random) -> tuple[World, int]:
    waves = 1 if rng.random() < 0.3 else WAVES
    world = make_world(programs()[0].kernel, rng, waves=waves, clean=0.5)
    wave = int(rng.integers(waves))
    set_exec(world, wave, rng)
    return world, wave


def avoid_nans(world: World) -> None:
    """Which NaN a sum of halves gives is not compared: all halves of data and memory become small numbers."""
    memory, batch = world.memory, world.batch
    for words in (memory._words[: ARENA // 4], batch.local._words, batch.vector[8]):
        words &= np.uint32(0xBFFFBFFF)


def let_some_compare_equal(world: World, wave: int, rng: Random) -> None:
    """Half of the values to compare with, and all of memory, are one number."""
    for words in (world.memory._words[: ARENA // 4], world.batch.local._words):
        words[:] = 5
    registers = world.batch.vector[8:20, wave]
    registers[rng.random(registers.shape) < 0.7] = 5


BEHIND = ["s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(1)", "ds_write_b32 v12, v13"]
KINDS = {
    "global": (global_case, global_lines),
    "flat": (global_case, global_lines),
    "buffer": (buffer_case, buffer_lines),
    "lds": (local_case, local_lines),
    "smem": (scalar_case, scalar_lines),
    "scratch": (scratch_case, scratch_lines),
}


def to_local(row: Any) -> Any:
    """A buffer load with the modifier lds, as the decoder makes it."""
    return dataclasses.replace(row, access=dataclasses.replace(row.access, lds=True), variant="lds")


BUFFER_TO_LOCAL = [to_local(ROWS[f"buffer_load_{size}"]) for size in ("ubyte", "sshort", "dword", "dwordx3", "dwordx4")]
# Atomics of buffers and flat addresses are those of global ones behind their addresses: the common ones will do.
CHECKED = sorted(
    (
        row
        for row in (*ROWS.values(), *BUFFER_TO_LOCAL)
        if row.kind in KINDS
        and (library.family_of(row).shapes(row) or row.kind in ("scratch", "smem"))
        and row.access is not None
        and (row.access.kind != "atomic" or row.kind in ("global", "lds") or row in isa_memory.ROWS)
    ),
    key=lambda row: (row.name, row.variant),
)
TRIALS = 24


@pytest.mark.parametrize("row", CHECKED, ids=lambda row: f"{row.name} {row.variant}".strip())
def test_same_as_numpy(row: Any) -> None:
    rng = np.random.default_rng(list(f"{row.name}{row.variant}".encode()))
    seen = []
    for _ in range(TRIALS):
        world, wave, line = KINDS[row.kind][0](row, rng)
        if "pk_add" in row.name:
            avoid_nans(world)
        if row.access.pair:
            let_some_compare_equal(world, wave, rng)
        if row.access.lds:
            aim_at_local(world, wave, rng)
        seen.append(compare(world, wave, line, *behind(row, rng)) or "fine")
    assert seen.count("fine") > 1
    assert len({text.removeprefix("lane").lstrip(" 0123456789:").split(":")[0] for text in seen}) > 1
