"""What is shown of paths for weaker kernels: conditions that are asked for twice, and barriers around one wave."""

from __future__ import annotations

from typing import Any

import pytest
from sim_kernels import encode

from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.mutation import wait_mutants
from spconv_compiler.sim.mutation_paths import LDS, MEMORY, Queue, nothing_more_under_way, one_wave_alone

TO_LOCAL = "buffer_load_dword v1, s[8:11], 0 offen lds"
LOAD = "buffer_load_dword v2, v1, s[8:11], 0 offen"
# Skips a load to LDS where a condition that was put aside is false.
AGAIN = "s_and_b64 s[2:3], {0}, exec\ns_cselect_b32 s2, 1, 0\ns_cmp_lg_u32 s2, 1\ns_cbranch_scc1 2"


def kernel(text: str) -> list[Instruction]:
    return decode(encode(f"{text}\ns_endpgm"), 0)


def loads(
    first: str = "s_cmpk_gt_i32 s3, 0x3", jump: str = "scc1", second: str = "s[6:7]", between: str = "s_nop 0"
) -> str:
    """Two loads to LDS under conditions, a load to a register between them, and two waits before the barrier."""
    text = f"s_mov_b32 m0, 0\ns_cmpk_lt_i32 s3, 0x4\ns_cselect_b64 s[6:7], -1, 0\n{first}\ns_cbranch_{jump} 2\n"
    text += f"{TO_LOCAL}\n{LOAD}\n{between}\n{AGAIN.format(second)}\n{TO_LOCAL}\n"
    # With both loads to LDS the first wait covers the first of them; with one, only the second wait does.
    return text + "s_waitcnt vmcnt(2)\ns_waitcnt vmcnt(1)\ns_barrier\ns_waitcnt vmcnt(0)"


def dropped(text: str, number: int = 1, queue: Queue = MEMORY) -> bool:
    """What is shown of a wait, without it."""
    items = kernel(text)
    place = [at for at, item in enumerate(items) if item.row.kind == "wait"][number]
    (mutant,) = (one for one in wait_mutants(items) if (one.index, one.change) == (place, f"{queue.counter} dropped"))
    return nothing_more_under_way(items, mutant.instructions, queue)


def test_a_condition_has_one_answer_in_a_wave() -> None:
    assert dropped(loads())
    assert dropped(loads(first="s_nop 0", jump="scc0"))


@pytest.mark.parametrize(
    "other",
    [
        {"second": "s[12:13]"},
        {"first": "s_cmpk_gt_i32 s3, 0x4"},
        {"first": "s_cmpk_gt_i32 s4, 0x3"},
        {"first": "s_mov_b32 s3, 1\ns_cmpk_gt_i32 s3, 0x3"},
        {"jump": "scc0"},
        {"between": "s_mov_b32 s7, 0"},
        {"between": "s_and_saveexec_b64 s[14:15], vcc"},
    ],
    ids=str,
)
def test_another_condition_is_told_apart(other: dict[str, str]) -> None:
    assert not dropped(loads(**other))


def test_a_condition_of_a_loop_may_change() -> None:
    """The same text with a way back in front of the comparison."""
    text = loads().replace("s_barrier\n", "s_barrier\ns_cbranch_vccnz 65517\n")
    items = kernel(text)
    (back,) = (item for item in items if item.row.name == "s_cbranch_vccnz")
    assert back.operands[0].number == items[1].address
    assert not dropped(text)


READ, SWIZZLE = "ds_read_b32 v3, v1", "ds_swizzle_b32 v3, v1 offset:swizzle(SWAP,8)"
WAIT, USE = "s_waitcnt lgkmcnt(0)", "v_mov_b32_e32 v4, v3"
FEWER, ALL = "s_and_saveexec_b64 s[4:5], vcc", "s_or_b64 exec, exec, s[4:5]"
BEHIND = pytest.mark.parametrize(
    "behind", ["s_barrier", f"s_mov_b32 m0, 0\ns_nop 0\n{TO_LOCAL}"], ids=["barrier", "load"]
)


@BEHIND
def test_lds_is_read_before_a_barrier_and_a_load_to_it(behind: str) -> None:
    """Registers are for the static checks; what has still to be read must not be overwritten."""

    def shown(text: str) -> bool:
        return dropped(f"{text}\n{behind}\n{WAIT}\n{USE}", 0, LDS)

    assert not shown(f"{READ}\n{WAIT}") and shown(f"{READ}\n{WAIT}\n{WAIT}")
    assert shown(f"{SWIZZLE}\n{WAIT}") and shown(f"{READ}\n{WAIT}\n{READ}\n{WAIT}")
    # Of two reads the second wait covers the older one; behind a load of scalars it need not be the older one's.
    several = f"{READ}\n{WAIT}\n{READ}\ns_waitcnt lgkmcnt({{}})"
    assert shown(several.format(1)) and not shown(several.format(2))
    assert not shown(f"{READ}\n{WAIT}\ns_load_dword s2, s[4:5], 0x0\ns_waitcnt lgkmcnt(1)")
    # On one path nothing else waits.
    assert not shown(f"{READ}\n{WAIT}\ns_cbranch_scc0 1\n{WAIT}")
    assert not shown(f"flat_load_dword v4, v[6:7]\n{READ}\n{WAIT}\n{WAIT}")


@BEHIND
def test_what_nobody_uses_may_be_overwritten_while_it_is_read(behind: str) -> None:
    def shown(text: str, first: str = READ) -> bool:
        return dropped(f"{first}\n{WAIT}\n{behind}\n{text}", 0, LDS)

    assert shown("s_nop 0") and shown(f"{READ}\n{WAIT}\n{USE}")
    # Not a write, and not where some path uses the older value, in all lanes or in those that are not read again.
    assert not shown(f"{READ}\n{WAIT}\n{USE}", "ds_write_b32 v1, v3")
    assert not shown(f"s_cbranch_scc0 2\n{READ}\n{WAIT}\n{USE}")
    assert not shown(f"{FEWER}\n{READ}\n{ALL}\n{WAIT}\n{USE}")
    assert shown(f"{FEWER}\n{ALL}\n{READ}\n{WAIT}\n{USE}")
    assert not shown(f"{FEWER}\ns_nop 0\n{ALL.replace('s[4:5]', 's[6:7]')}\n{READ}\n{WAIT}\n{USE}")
    assert not shown(f"ds_read_u16_d16 v3, v1\n{WAIT}\n{USE}")


FIRST_WAVE = "v_cmp_gt_u32_e32 vcc, {0}, v0\ns_and_saveexec_b64 s[4:5], vcc"
ADD = "ds_add_u32 v1, v2"


def around(limit: int = 64, before: str = "", after: str = "", late: str = "") -> bool:
    """What is shown of the barrier between an addition and a read in LDS."""
    mask = FIRST_WAVE.format(limit)
    text = (
        f"{before}\n{mask}\n{ADD}\n{late}\n{ALL}\n{WAIT}\ns_barrier\n{mask}\n{READ}\n{ALL}\n{after}\n{WAIT}\ns_barrier"
    )
    items = kernel("\n".join(line for line in text.split("\n") if line))
    added = next(at for at, item in enumerate(items) if item.row.name == "ds_add_u32")
    return one_wave_alone(items, next(at for at, i in enumerate(items) if i.row.kind == "barrier" and at > added))


def test_a_barrier_around_one_wave() -> None:
    assert around() and around(27) and around(before=f"{READ}\n{WAIT}\ns_barrier", after=f"{WAIT}\ns_barrier\n{READ}")
    assert around(after="buffer_store_dword v2, v1, s[8:11], 0 offen")


@pytest.mark.parametrize(
    "other",
    [
        {"limit": 65},
        {"after": READ},
        {"before": READ},
        {"before": "v_mov_b32_e32 v0, v1"},
        # All waves wait in front of the barrier for what they began before the last one.
        {"before": f"{READ}\ns_barrier"},
        {"before": f"s_mov_b32 m0, 0\ns_nop 0\n{TO_LOCAL}\ns_barrier"},
        {"late": "buffer_store_dword v2, v1, s[8:11], 0 offen"},
    ],
    ids=str,
)
def test_a_barrier_between_waves(other: dict[str, Any]) -> None:
    assert not around(**other)
