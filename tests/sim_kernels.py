"""Small kernels written in assembly, to run on the simulator."""

from __future__ import annotations

from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.decode import decode_one
from spconv_compiler.sim.elf import Argument, Descriptor, Kernel

# s[4:7] describes the first argument as a buffer, s[8:11] the second; v1 is four times the lane.
PROLOGUE = """
s_load_dwordx4 s[12:15], s[0:1], 0x0
s_mov_b32 s6, -1
s_mov_b32 s7, 0x27000
s_mov_b32 s10, -1
s_mov_b32 s11, 0x27000
v_lshlrev_b32_e32 v1, 2, v0
s_waitcnt lgkmcnt(0)
s_and_b32 s5, s13, 0xffff
s_mov_b32 s4, s12
s_and_b32 s9, s15, 0xffff
s_mov_b32 s8, s14
"""


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def encode(text: str) -> bytes:
    """The bytes of assembly text, one instruction a line; branches name numbers of dwords."""
    return b"".join(slot[: decode_one(slot).size] for slot in assemble(lines_of(text)))


def make_kernel(
    text: str,
    *,
    lds_bytes: int = 0,
    scratch_bytes: int = 0,
    vgprs: int = 32,
    accum_offset: int = 32,
    lanes: int = 256,
) -> Kernel:
    """A kernel k(buffer, buffer) whose s2 is the number of the workgroup."""
    descriptor = Descriptor(
        lds_bytes=lds_bytes,
        scratch_bytes=scratch_bytes,
        kernarg_bytes=16,
        entry=0x1000,
        vgprs=vgprs,
        accum_offset=accum_offset,
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
    return Kernel("k", 0x1000, encode(text), descriptor, arguments, None, lanes, 32, 0)
