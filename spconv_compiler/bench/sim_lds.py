"""A kernel with LDS tiles and barriers, to time the simulator on: four waves stage 4 KiB tiles and multiply them.

In each round every lane loads 16 bytes, writes them to LDS, and after a barrier reads its own 16 bytes and those of a
lane of the neighbouring wave, as A and B of a matrix instruction; a second barrier keeps the next round apart.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from spconv_compiler.bench.sim_layer import Engine
from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.decode import decode_one
from spconv_compiler.sim.elf import Argument, Descriptor, Kernel

ROUNDS, GROUPS, LANES = 100, 512, 256
_TILE = 16 * LANES
_LOOP = """
buffer_load_dwordx4 v[4:7], v1, s[4:7], 0 offen
s_waitcnt vmcnt(0)
ds_write_b128 v1, v[4:7]
s_waitcnt lgkmcnt(0)
s_barrier
ds_read_b128 v[8:11], v2
ds_read_b128 v[12:15], v1
s_waitcnt lgkmcnt(0)
v_mfma_f32_16x16x32_bf16 v[16:19], v[8:11], v[12:15], v[16:19]
s_barrier
s_sub_u32 s8, s8, 1
s_cmp_lg_u32 s8, 0
"""
_TEXT = """
s_load_dwordx4 s[12:15], s[0:1], 0x0
s_mov_b32 s6, -1
s_mov_b32 s7, 0x27000
s_mov_b32 s18, -1
s_mov_b32 s19, 0x27000
s_mov_b32 s8, {rounds}
s_lshl_b32 s9, s2, 12
v_lshlrev_b32_e32 v1, 4, v0
v_xor_b32_e32 v2, 0x400, v1
v_mov_b32_e32 v16, 0
v_mov_b32_e32 v17, 0
v_mov_b32_e32 v18, 0
v_mov_b32_e32 v19, 0
s_waitcnt lgkmcnt(0)
s_and_b32 s5, s13, 0xffff
s_mov_b32 s4, s12
s_and_b32 s17, s15, 0xffff
s_mov_b32 s16, s14
{loop}
s_cbranch_scc1 {back}
s_nop 7
buffer_store_dwordx4 v[16:19], v1, s[16:19], s9 offen
s_endpgm
"""


def build() -> Kernel:
    """The kernel k(tile, result); result: 4 KiB a workgroup."""
    loop = _encode(_LOOP)
    code = _encode(_TEXT.format(rounds=ROUNDS, loop=_LOOP, back=-(len(loop) // 4) - 1))
    descriptor = Descriptor(
        lds_bytes=_TILE,
        scratch_bytes=0,
        kernarg_bytes=16,
        entry=0x1000,
        vgprs=24,
        accum_offset=24,
        user_sgprs=2,
        properties=8,
        group_ids=(True, False, False),
        workgroup_info=False,
        lane_ids=0,
        float_mode=0xF0,
        ieee=True,
        dx10_clamp=True,
        kernarg_preload=0,
    )
    arguments = (Argument(0, 8, "global_buffer"), Argument(8, 8, "global_buffer"))
    return Kernel("k", 0x1000, code, descriptor, arguments, None, LANES, 32, 0)


def _encode(text: str) -> bytes:
    lines = [line for line in text.splitlines() if line]
    return b"".join(slot[: decode_one(slot).size] for slot in assemble(lines))


def measure(make: Engine, runs: int, groups: int = GROUPS) -> dict[str, Any]:
    """Wave instructions of a launch, seconds of each run, and whether the result is right."""
    machine = make({"k": build()}, 2**31)
    tile = machine.memory.allocate("tile", _TILE)
    result = machine.memory.allocate("result", _TILE * groups)
    # Every value of the tile is bfloat16 1.0: each sum is one of 32 ones, ROUNDS times over.
    machine.memory.write_array(tile, np.full(_TILE // 2, 0x3F80, np.uint16))
    seconds, instructions = [], 0
    for _ in range(runs):
        start = time.perf_counter()
        instructions = machine.launch("k", [groups], LANES, [tile, result]).instructions
        seconds.append(time.perf_counter() - start)
    right = bool((machine.memory.read_bytes(result).view(np.float32) == 32 * ROUNDS).all())
    return {"instructions": instructions, "seconds": seconds, "right": right}
