"""Vector opcodes that look at more than one lane, write EXEC, or move accumulation registers."""

from __future__ import annotations

from spconv_compiler.sim.isa_float import ROWS as _FLOAT_ROWS
from spconv_compiler.sim.isa_half import ROWS as _HALF_ROWS
from spconv_compiler.sim.isa_vector import ROWS as _VECTOR_ROWS
from spconv_compiler.sim.rows import Row, row


def _lanes() -> list[Row]:
    return [
        # The lane number comes last; the old value of the register stays in the other lanes.
        row("v_writelane_b32", "lane", "VOP3", "u32 <- u32 s32 lane", tied=True),
        row("v_swap_b32", "swap", "VOP1", "u32 u32 <-"),
        row("v_permlane16_swap_b32", "swap", "VOP1 VOP3", "u32 u32 <-"),
        row("v_permlane32_swap_b32", "swap", "VOP1 VOP3", "u32 u32 <-"),
    ]


def _moves() -> list[Row]:
    return [
        row("v_nop", "nop", "VOP1 VOP3"),
        row("v_accvgpr_mov_b32", "valu", "VOP1", "acc <- acc", lambda a: a),
        row("v_accvgpr_read_b32", "valu", "VOP3P", "u32 <- acc", lambda a: a),
        row("v_accvgpr_write_b32", "valu", "VOP3P", "acc <- u32", lambda a: a),
    ]


def _exec_compares() -> list[Row]:
    """v_cmpx_…: the lane mask goes to EXEC too."""
    rows = []
    for each in (*_VECTOR_ROWS, *_FLOAT_ROWS, *_HALF_ROWS):
        if each.name.startswith("v_cmp_"):
            name, signature = each.name.replace("v_cmp_", "v_cmpx_"), f"mask <- {' '.join(each.sources)}"
            rows.append(row(name, "cmpx", " ".join(each.formats), signature, each.meaning))
    return rows


ROWS = [*_lanes(), *_moves(), *_exec_compares()]
