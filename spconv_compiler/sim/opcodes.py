"""Opcode numbers by format, then number. Generated: see generate_opcodes.py; do not edit."""

from __future__ import annotations

_LISTS = {
    "DS": """
        0 ds_add_u32 1 ds_sub_u32 2 ds_rsub_u32 3 ds_inc_u32 4 ds_dec_u32 5 ds_min_i32 6 ds_max_i32 7 ds_min_u32 8
        ds_max_u32 9 ds_and_b32 10 ds_or_b32 11 ds_xor_b32 13 ds_write_b32 14 ds_write2_b32 15 ds_write2st64_b32 16
        ds_cmpst_b32 18 ds_min_f32 19 ds_max_f32 20 ds_nop 21 ds_add_f32 23 ds_pk_add_f16 24 ds_pk_add_bf16 30
        ds_write_b8 31 ds_write_b16 32 ds_add_rtn_u32 33 ds_sub_rtn_u32 34 ds_rsub_rtn_u32 35 ds_inc_rtn_u32 36
        ds_dec_rtn_u32 37 ds_min_rtn_i32 38 ds_max_rtn_i32 39 ds_min_rtn_u32 40 ds_max_rtn_u32 41 ds_and_rtn_b32 42
        ds_or_rtn_b32 43 ds_xor_rtn_b32 45 ds_wrxchg_rtn_b32 48 ds_cmpst_rtn_b32 50 ds_min_rtn_f32 51 ds_max_rtn_f32
        53 ds_add_rtn_f32 54 ds_read_b32 55 ds_read2_b32 56 ds_read2st64_b32 57 ds_read_i8 58 ds_read_u8 59
        ds_read_i16 60 ds_read_u16 61 ds_swizzle_b32 62 ds_permute_b32 63 ds_bpermute_b32 64 ds_add_u64 65 ds_sub_u64
        66 ds_rsub_u64 67 ds_inc_u64 68 ds_dec_u64 69 ds_min_i64 70 ds_max_i64 71 ds_min_u64 72 ds_max_u64 73
        ds_and_b64 74 ds_or_b64 75 ds_xor_b64 77 ds_write_b64 78 ds_write2_b64 79 ds_write2st64_b64 80 ds_cmpst_b64 82
        ds_min_f64 83 ds_max_f64 84 ds_write_b8_d16_hi 85 ds_write_b16_d16_hi 86 ds_read_u8_d16 87 ds_read_u8_d16_hi
        88 ds_read_i8_d16 89 ds_read_i8_d16_hi 90 ds_read_u16_d16 91 ds_read_u16_d16_hi 92 ds_add_f64 96
        ds_add_rtn_u64 97 ds_sub_rtn_u64 98 ds_rsub_rtn_u64 99 ds_inc_rtn_u64 100 ds_dec_rtn_u64 101 ds_min_rtn_i64
        102 ds_max_rtn_i64 103 ds_min_rtn_u64 104 ds_max_rtn_u64 105 ds_and_rtn_b64 106 ds_or_rtn_b64 107
        ds_xor_rtn_b64 109 ds_wrxchg_rtn_b64 112 ds_cmpst_rtn_b64 114 ds_min_rtn_f64 115 ds_max_rtn_f64 118
        ds_read_b64 119 ds_read2_b64 120 ds_read2st64_b64 124 ds_add_rtn_f64 183 ds_pk_add_rtn_f16 184
        ds_pk_add_rtn_bf16 222 ds_write_b96 223 ds_write_b128 224 ds_read_b64_tr_b4 225 ds_read_b96_tr_b6 226
        ds_read_b64_tr_b8 227 ds_read_b64_tr_b16 254 ds_read_b96 255 ds_read_b128
    """,
    "FLAT flat": """
        16 flat_load_ubyte 17 flat_load_sbyte 18 flat_load_ushort 19 flat_load_sshort 20 flat_load_dword 21
        flat_load_dwordx2 22 flat_load_dwordx3 23 flat_load_dwordx4 24 flat_store_byte 25 flat_store_byte_d16_hi 26
        flat_store_short 27 flat_store_short_d16_hi 28 flat_store_dword 29 flat_store_dwordx2 30 flat_store_dwordx3 31
        flat_store_dwordx4 32 flat_load_ubyte_d16 33 flat_load_ubyte_d16_hi 34 flat_load_sbyte_d16 35
        flat_load_sbyte_d16_hi 36 flat_load_short_d16 37 flat_load_short_d16_hi 64 flat_atomic_swap 65
        flat_atomic_cmpswap 66 flat_atomic_add 67 flat_atomic_sub 68 flat_atomic_smin 69 flat_atomic_umin 70
        flat_atomic_smax 71 flat_atomic_umax 72 flat_atomic_and 73 flat_atomic_or 74 flat_atomic_xor 75
        flat_atomic_inc 76 flat_atomic_dec 77 flat_atomic_add_f32 78 flat_atomic_pk_add_f16 79 flat_atomic_add_f64 80
        flat_atomic_min_f64 81 flat_atomic_max_f64 82 flat_atomic_pk_add_bf16 96 flat_atomic_swap_x2 97
        flat_atomic_cmpswap_x2 98 flat_atomic_add_x2 99 flat_atomic_sub_x2 100 flat_atomic_smin_x2 101
        flat_atomic_umin_x2 102 flat_atomic_smax_x2 103 flat_atomic_umax_x2 104 flat_atomic_and_x2 105
        flat_atomic_or_x2 106 flat_atomic_xor_x2 107 flat_atomic_inc_x2 108 flat_atomic_dec_x2
    """,
    "FLAT global": """
        16 global_load_ubyte 17 global_load_sbyte 18 global_load_ushort 19 global_load_sshort 20 global_load_dword 21
        global_load_dwordx2 22 global_load_dwordx3 23 global_load_dwordx4 24 global_store_byte 25
        global_store_byte_d16_hi 26 global_store_short 27 global_store_short_d16_hi 28 global_store_dword 29
        global_store_dwordx2 30 global_store_dwordx3 31 global_store_dwordx4 32 global_load_ubyte_d16 33
        global_load_ubyte_d16_hi 34 global_load_sbyte_d16 35 global_load_sbyte_d16_hi 36 global_load_short_d16 37
        global_load_short_d16_hi 38 global_load_lds_ubyte 39 global_load_lds_sbyte 40 global_load_lds_ushort 41
        global_load_lds_sshort 42 global_load_lds_dword 64 global_atomic_swap 65 global_atomic_cmpswap 66
        global_atomic_add 67 global_atomic_sub 68 global_atomic_smin 69 global_atomic_umin 70 global_atomic_smax 71
        global_atomic_umax 72 global_atomic_and 73 global_atomic_or 74 global_atomic_xor 75 global_atomic_inc 76
        global_atomic_dec 77 global_atomic_add_f32 78 global_atomic_pk_add_f16 79 global_atomic_add_f64 80
        global_atomic_min_f64 81 global_atomic_max_f64 82 global_atomic_pk_add_bf16 96 global_atomic_swap_x2 97
        global_atomic_cmpswap_x2 98 global_atomic_add_x2 99 global_atomic_sub_x2 100 global_atomic_smin_x2 101
        global_atomic_umin_x2 102 global_atomic_smax_x2 103 global_atomic_umax_x2 104 global_atomic_and_x2 105
        global_atomic_or_x2 106 global_atomic_xor_x2 107 global_atomic_inc_x2 108 global_atomic_dec_x2 125
        global_load_lds_dwordx4 126 global_load_lds_dwordx3
    """,
    "FLAT scratch": """
        16 scratch_load_ubyte 17 scratch_load_sbyte 18 scratch_load_ushort 19 scratch_load_sshort 20
        scratch_load_dword 21 scratch_load_dwordx2 22 scratch_load_dwordx3 23 scratch_load_dwordx4 24
        scratch_store_byte 25 scratch_store_byte_d16_hi 26 scratch_store_short 27 scratch_store_short_d16_hi 28
        scratch_store_dword 29 scratch_store_dwordx2 30 scratch_store_dwordx3 31 scratch_store_dwordx4 32
        scratch_load_ubyte_d16 33 scratch_load_ubyte_d16_hi 34 scratch_load_sbyte_d16 35 scratch_load_sbyte_d16_hi 36
        scratch_load_short_d16 37 scratch_load_short_d16_hi
    """,
    "MAI": """
        45 v_mfma_f32_16x16x128_f8f6f4 46 v_mfma_f32_32x32x64_f8f6f4 53 v_mfma_f32_16x16x32_bf16 54
        v_mfma_i32_16x16x64_i8 55 v_mfma_f32_32x32x16_bf16 56 v_mfma_i32_32x32x32_i8 68 v_mfma_f32_32x32x2_f32 69
        v_mfma_f32_16x16x4_f32 76 v_mfma_f32_32x32x8_f16 77 v_mfma_f32_16x16x16_f16 84 v_mfma_f32_16x16x32_f16 85
        v_mfma_f32_32x32x16_f16 86 v_mfma_i32_32x32x16_i8 87 v_mfma_i32_16x16x32_i8 96 v_mfma_f32_32x32x8_bf16 97
        v_mfma_f32_16x16x16_bf16 112 v_mfma_f32_16x16x32_bf8_bf8 113 v_mfma_f32_16x16x32_bf8_fp8 114
        v_mfma_f32_16x16x32_fp8_bf8 115 v_mfma_f32_16x16x32_fp8_fp8 116 v_mfma_f32_32x32x16_bf8_bf8 117
        v_mfma_f32_32x32x16_bf8_fp8 118 v_mfma_f32_32x32x16_fp8_bf8 119 v_mfma_f32_32x32x16_fp8_fp8
    """,
    "MUBUF": """
        16 buffer_load_ubyte 17 buffer_load_sbyte 18 buffer_load_ushort 19 buffer_load_sshort 20 buffer_load_dword 21
        buffer_load_dwordx2 22 buffer_load_dwordx3 23 buffer_load_dwordx4 24 buffer_store_byte 25
        buffer_store_byte_d16_hi 26 buffer_store_short 27 buffer_store_short_d16_hi 28 buffer_store_dword 29
        buffer_store_dwordx2 30 buffer_store_dwordx3 31 buffer_store_dwordx4 32 buffer_load_ubyte_d16 33
        buffer_load_ubyte_d16_hi 34 buffer_load_sbyte_d16 35 buffer_load_sbyte_d16_hi 36 buffer_load_short_d16 37
        buffer_load_short_d16_hi 40 buffer_wbl2 41 buffer_inv 64 buffer_atomic_swap 65 buffer_atomic_cmpswap 66
        buffer_atomic_add 67 buffer_atomic_sub 68 buffer_atomic_smin 69 buffer_atomic_umin 70 buffer_atomic_smax 71
        buffer_atomic_umax 72 buffer_atomic_and 73 buffer_atomic_or 74 buffer_atomic_xor 75 buffer_atomic_inc 76
        buffer_atomic_dec 77 buffer_atomic_add_f32 78 buffer_atomic_pk_add_f16 79 buffer_atomic_add_f64 80
        buffer_atomic_min_f64 81 buffer_atomic_max_f64 82 buffer_atomic_pk_add_bf16 96 buffer_atomic_swap_x2 97
        buffer_atomic_cmpswap_x2 98 buffer_atomic_add_x2 99 buffer_atomic_sub_x2 100 buffer_atomic_smin_x2 101
        buffer_atomic_umin_x2 102 buffer_atomic_smax_x2 103 buffer_atomic_umax_x2 104 buffer_atomic_and_x2 105
        buffer_atomic_or_x2 106 buffer_atomic_xor_x2 107 buffer_atomic_inc_x2 108 buffer_atomic_dec_x2
    """,
    "SMEM": """
        0 s_load_dword 1 s_load_dwordx2 2 s_load_dwordx4 3 s_load_dwordx8 4 s_load_dwordx16 8 s_buffer_load_dword 9
        s_buffer_load_dwordx2 10 s_buffer_load_dwordx4 11 s_buffer_load_dwordx8 12 s_buffer_load_dwordx16 32
        s_dcache_inv 33 s_dcache_wb 34 s_dcache_inv_vol 36 s_memtime 37 s_memrealtime
    """,
    "SOP1": """
        0 s_mov_b32 1 s_mov_b64 2 s_cmov_b32 3 s_cmov_b64 4 s_not_b32 5 s_not_b64 7 s_wqm_b64 8 s_brev_b32 9
        s_brev_b64 10 s_bcnt0_i32_b32 11 s_bcnt0_i32_b64 12 s_bcnt1_i32_b32 13 s_bcnt1_i32_b64 14 s_ff0_i32_b32 15
        s_ff0_i32_b64 16 s_ff1_i32_b32 17 s_ff1_i32_b64 18 s_flbit_i32_b32 19 s_flbit_i32_b64 20 s_flbit_i32 21
        s_flbit_i32_i64 22 s_sext_i32_i8 23 s_sext_i32_i16 24 s_bitset0_b32 25 s_bitset0_b64 26 s_bitset1_b32 27
        s_bitset1_b64 32 s_and_saveexec_b64 33 s_or_saveexec_b64 34 s_xor_saveexec_b64 35 s_andn2_saveexec_b64 36
        s_orn2_saveexec_b64 37 s_nand_saveexec_b64 38 s_nor_saveexec_b64 39 s_xnor_saveexec_b64 41 s_quadmask_b64 48
        s_abs_i32 51 s_andn1_saveexec_b64 52 s_orn1_saveexec_b64 55 s_bitreplicate_b64_b32
    """,
    "SOP2": """
        0 s_add_u32 1 s_sub_u32 2 s_add_i32 3 s_sub_i32 4 s_addc_u32 5 s_subb_u32 6 s_min_i32 7 s_min_u32 8 s_max_i32
        9 s_max_u32 10 s_cselect_b32 11 s_cselect_b64 12 s_and_b32 13 s_and_b64 14 s_or_b32 15 s_or_b64 16 s_xor_b32
        17 s_xor_b64 18 s_andn2_b32 19 s_andn2_b64 20 s_orn2_b32 21 s_orn2_b64 22 s_nand_b32 23 s_nand_b64 24
        s_nor_b32 25 s_nor_b64 26 s_xnor_b32 27 s_xnor_b64 28 s_lshl_b32 29 s_lshl_b64 30 s_lshr_b32 31 s_lshr_b64 32
        s_ashr_i32 33 s_ashr_i64 34 s_bfm_b32 35 s_bfm_b64 36 s_mul_i32 37 s_bfe_u32 38 s_bfe_i32 39 s_bfe_u64 40
        s_bfe_i64 42 s_absdiff_i32 44 s_mul_hi_u32 45 s_mul_hi_i32 46 s_lshl1_add_u32 47 s_lshl2_add_u32 48
        s_lshl3_add_u32 49 s_lshl4_add_u32 50 s_pack_ll_b32_b16 51 s_pack_lh_b32_b16 52 s_pack_hh_b32_b16
    """,
    "SOPC": """
        0 s_cmp_eq_i32 1 s_cmp_lg_i32 2 s_cmp_gt_i32 3 s_cmp_ge_i32 4 s_cmp_lt_i32 5 s_cmp_le_i32 6 s_cmp_eq_u32 7
        s_cmp_lg_u32 8 s_cmp_gt_u32 9 s_cmp_ge_u32 10 s_cmp_lt_u32 11 s_cmp_le_u32 12 s_bitcmp0_b32 13 s_bitcmp1_b32
        14 s_bitcmp0_b64 15 s_bitcmp1_b64 18 s_cmp_eq_u64 19 s_cmp_lg_u64
    """,
    "SOPK": """
        0 s_movk_i32 1 s_cmovk_i32 2 s_cmpk_eq_i32 3 s_cmpk_lg_i32 4 s_cmpk_gt_i32 5 s_cmpk_ge_i32 6 s_cmpk_lt_i32 7
        s_cmpk_le_i32 8 s_cmpk_eq_u32 9 s_cmpk_lg_u32 10 s_cmpk_gt_u32 11 s_cmpk_ge_u32 12 s_cmpk_lt_u32 13
        s_cmpk_le_u32 14 s_addk_i32 15 s_mulk_i32 17 s_getreg_b32 18 s_setreg_b32 20 s_setreg_imm32_b32
    """,
    "SOPP": """
        0 s_nop 1 s_endpgm 2 s_branch 3 s_wakeup 4 s_cbranch_scc0 5 s_cbranch_scc1 6 s_cbranch_vccz 7 s_cbranch_vccnz
        8 s_cbranch_execz 9 s_cbranch_execnz 10 s_barrier 12 s_waitcnt 14 s_sleep 15 s_setprio 18 s_trap 19
        s_icache_inv 22 s_ttracedata
    """,
    "VOP1": """
        0 v_nop 1 v_mov_b32 2 v_readfirstlane_b32 3 v_cvt_i32_f64 4 v_cvt_f64_i32 5 v_cvt_f32_i32 6 v_cvt_f32_u32 7
        v_cvt_u32_f32 8 v_cvt_i32_f32 10 v_cvt_f16_f32 11 v_cvt_f32_f16 12 v_cvt_rpi_i32_f32 13 v_cvt_flr_i32_f32 15
        v_cvt_f32_f64 16 v_cvt_f64_f32 17 v_cvt_f32_ubyte0 18 v_cvt_f32_ubyte1 19 v_cvt_f32_ubyte2 20 v_cvt_f32_ubyte3
        21 v_cvt_u32_f64 22 v_cvt_f64_u32 23 v_trunc_f64 24 v_ceil_f64 25 v_rndne_f64 26 v_floor_f64 27 v_fract_f32 28
        v_trunc_f32 29 v_ceil_f32 30 v_rndne_f32 31 v_floor_f32 32 v_exp_f32 33 v_log_f32 34 v_rcp_f32 35
        v_rcp_iflag_f32 36 v_rsq_f32 37 v_rcp_f64 38 v_rsq_f64 39 v_sqrt_f32 40 v_sqrt_f64 41 v_sin_f32 42 v_cos_f32
        43 v_not_b32 44 v_bfrev_b32 45 v_ffbh_u32 46 v_ffbl_b32 47 v_ffbh_i32 48 v_frexp_exp_i32_f64 49
        v_frexp_mant_f64 50 v_fract_f64 51 v_frexp_exp_i32_f32 52 v_frexp_mant_f32 56 v_mov_b64 57 v_cvt_f16_u16 58
        v_cvt_f16_i16 59 v_cvt_u16_f16 60 v_cvt_i16_f16 61 v_rcp_f16 62 v_sqrt_f16 63 v_rsq_f16 64 v_log_f16 65
        v_exp_f16 66 v_frexp_mant_f16 67 v_frexp_exp_i16_f16 68 v_floor_f16 69 v_ceil_f16 70 v_trunc_f16 71
        v_rndne_f16 72 v_fract_f16 73 v_sin_f16 74 v_cos_f16 81 v_swap_b32 82 v_accvgpr_mov_b32 84 v_cvt_f32_fp8 85
        v_cvt_f32_bf8 86 v_cvt_pk_f32_fp8 87 v_cvt_pk_f32_bf8 89 v_permlane16_swap_b32 90 v_permlane32_swap_b32 91
        v_cvt_f32_bf16
    """,
    "VOP2": """
        0 v_cndmask_b32 1 v_add_f32 2 v_sub_f32 3 v_subrev_f32 4 v_fmac_f64 5 v_mul_f32 6 v_mul_i32_i24 7
        v_mul_hi_i32_i24 8 v_mul_u32_u24 9 v_mul_hi_u32_u24 10 v_min_f32 11 v_max_f32 12 v_min_i32 13 v_max_i32 14
        v_min_u32 15 v_max_u32 16 v_lshrrev_b32 17 v_ashrrev_i32 18 v_lshlrev_b32 19 v_and_b32 20 v_or_b32 21
        v_xor_b32 23 v_fmamk_f32 24 v_fmaak_f32 25 v_add_co_u32 26 v_sub_co_u32 27 v_subrev_co_u32 28 v_addc_co_u32 29
        v_subb_co_u32 30 v_subbrev_co_u32 31 v_add_f16 32 v_sub_f16 33 v_subrev_f16 34 v_mul_f16 38 v_add_u16 39
        v_sub_u16 40 v_subrev_u16 41 v_mul_lo_u16 42 v_lshlrev_b16 43 v_lshrrev_b16 44 v_ashrrev_i16 45 v_max_f16 46
        v_min_f16 47 v_max_u16 48 v_max_i16 49 v_min_u16 50 v_min_i16 51 v_ldexp_f16 52 v_add_u32 53 v_sub_u32 54
        v_subrev_u32 59 v_fmac_f32 61 v_xnor_b32
    """,
    "VOP3": """
        16 v_cmp_class_f32 17 v_cmpx_class_f32 18 v_cmp_class_f64 19 v_cmpx_class_f64 20 v_cmp_class_f16 21
        v_cmpx_class_f16 33 v_cmp_lt_f16 34 v_cmp_eq_f16 35 v_cmp_le_f16 36 v_cmp_gt_f16 37 v_cmp_lg_f16 38
        v_cmp_ge_f16 39 v_cmp_o_f16 40 v_cmp_u_f16 41 v_cmp_nge_f16 42 v_cmp_nlg_f16 43 v_cmp_ngt_f16 44 v_cmp_nle_f16
        45 v_cmp_neq_f16 46 v_cmp_nlt_f16 49 v_cmpx_lt_f16 50 v_cmpx_eq_f16 51 v_cmpx_le_f16 52 v_cmpx_gt_f16 53
        v_cmpx_lg_f16 54 v_cmpx_ge_f16 55 v_cmpx_o_f16 56 v_cmpx_u_f16 57 v_cmpx_nge_f16 58 v_cmpx_nlg_f16 59
        v_cmpx_ngt_f16 60 v_cmpx_nle_f16 61 v_cmpx_neq_f16 62 v_cmpx_nlt_f16 65 v_cmp_lt_f32 66 v_cmp_eq_f32 67
        v_cmp_le_f32 68 v_cmp_gt_f32 69 v_cmp_lg_f32 70 v_cmp_ge_f32 71 v_cmp_o_f32 72 v_cmp_u_f32 73 v_cmp_nge_f32 74
        v_cmp_nlg_f32 75 v_cmp_ngt_f32 76 v_cmp_nle_f32 77 v_cmp_neq_f32 78 v_cmp_nlt_f32 81 v_cmpx_lt_f32 82
        v_cmpx_eq_f32 83 v_cmpx_le_f32 84 v_cmpx_gt_f32 85 v_cmpx_lg_f32 86 v_cmpx_ge_f32 87 v_cmpx_o_f32 88
        v_cmpx_u_f32 89 v_cmpx_nge_f32 90 v_cmpx_nlg_f32 91 v_cmpx_ngt_f32 92 v_cmpx_nle_f32 93 v_cmpx_neq_f32 94
        v_cmpx_nlt_f32 97 v_cmp_lt_f64 98 v_cmp_eq_f64 99 v_cmp_le_f64 100 v_cmp_gt_f64 101 v_cmp_lg_f64 102
        v_cmp_ge_f64 103 v_cmp_o_f64 104 v_cmp_u_f64 105 v_cmp_nge_f64 106 v_cmp_nlg_f64 107 v_cmp_ngt_f64 108
        v_cmp_nle_f64 109 v_cmp_neq_f64 110 v_cmp_nlt_f64 113 v_cmpx_lt_f64 114 v_cmpx_eq_f64 115 v_cmpx_le_f64 116
        v_cmpx_gt_f64 117 v_cmpx_lg_f64 118 v_cmpx_ge_f64 119 v_cmpx_o_f64 120 v_cmpx_u_f64 121 v_cmpx_nge_f64 122
        v_cmpx_nlg_f64 123 v_cmpx_ngt_f64 124 v_cmpx_nle_f64 125 v_cmpx_neq_f64 126 v_cmpx_nlt_f64 161 v_cmp_lt_i16
        162 v_cmp_eq_i16 163 v_cmp_le_i16 164 v_cmp_gt_i16 165 v_cmp_ne_i16 166 v_cmp_ge_i16 169 v_cmp_lt_u16 170
        v_cmp_eq_u16 171 v_cmp_le_u16 172 v_cmp_gt_u16 173 v_cmp_ne_u16 174 v_cmp_ge_u16 177 v_cmpx_lt_i16 178
        v_cmpx_eq_i16 179 v_cmpx_le_i16 180 v_cmpx_gt_i16 181 v_cmpx_ne_i16 182 v_cmpx_ge_i16 185 v_cmpx_lt_u16 186
        v_cmpx_eq_u16 187 v_cmpx_le_u16 188 v_cmpx_gt_u16 189 v_cmpx_ne_u16 190 v_cmpx_ge_u16 193 v_cmp_lt_i32 194
        v_cmp_eq_i32 195 v_cmp_le_i32 196 v_cmp_gt_i32 197 v_cmp_ne_i32 198 v_cmp_ge_i32 201 v_cmp_lt_u32 202
        v_cmp_eq_u32 203 v_cmp_le_u32 204 v_cmp_gt_u32 205 v_cmp_ne_u32 206 v_cmp_ge_u32 209 v_cmpx_lt_i32 210
        v_cmpx_eq_i32 211 v_cmpx_le_i32 212 v_cmpx_gt_i32 213 v_cmpx_ne_i32 214 v_cmpx_ge_i32 217 v_cmpx_lt_u32 218
        v_cmpx_eq_u32 219 v_cmpx_le_u32 220 v_cmpx_gt_u32 221 v_cmpx_ne_u32 222 v_cmpx_ge_u32 225 v_cmp_lt_i64 226
        v_cmp_eq_i64 227 v_cmp_le_i64 228 v_cmp_gt_i64 229 v_cmp_ne_i64 230 v_cmp_ge_i64 233 v_cmp_lt_u64 234
        v_cmp_eq_u64 235 v_cmp_le_u64 236 v_cmp_gt_u64 237 v_cmp_ne_u64 238 v_cmp_ge_u64 241 v_cmpx_lt_i64 242
        v_cmpx_eq_i64 243 v_cmpx_le_i64 244 v_cmpx_gt_i64 245 v_cmpx_ne_i64 246 v_cmpx_ge_i64 249 v_cmpx_lt_u64 250
        v_cmpx_eq_u64 251 v_cmpx_le_u64 252 v_cmpx_gt_u64 253 v_cmpx_ne_u64 254 v_cmpx_ge_u64 256 v_cndmask_b32 257
        v_add_f32 258 v_sub_f32 259 v_subrev_f32 260 v_fmac_f64 261 v_mul_f32 262 v_mul_i32_i24 263 v_mul_hi_i32_i24
        264 v_mul_u32_u24 265 v_mul_hi_u32_u24 266 v_min_f32 267 v_max_f32 268 v_min_i32 269 v_max_i32 270 v_min_u32
        271 v_max_u32 272 v_lshrrev_b32 273 v_ashrrev_i32 274 v_lshlrev_b32 275 v_and_b32 276 v_or_b32 277 v_xor_b32
        281 v_add_co_u32 282 v_sub_co_u32 283 v_subrev_co_u32 284 v_addc_co_u32 285 v_subb_co_u32 286 v_subbrev_co_u32
        287 v_add_f16 288 v_sub_f16 289 v_subrev_f16 290 v_mul_f16 294 v_add_u16 295 v_sub_u16 296 v_subrev_u16 297
        v_mul_lo_u16 298 v_lshlrev_b16 299 v_lshrrev_b16 300 v_ashrrev_i16 301 v_max_f16 302 v_min_f16 303 v_max_u16
        304 v_max_i16 305 v_min_u16 306 v_min_i16 307 v_ldexp_f16 308 v_add_u32 309 v_sub_u32 310 v_subrev_u32 315
        v_fmac_f32 317 v_xnor_b32 320 v_nop 321 v_mov_b32 323 v_cvt_i32_f64 324 v_cvt_f64_i32 325 v_cvt_f32_i32 326
        v_cvt_f32_u32 327 v_cvt_u32_f32 328 v_cvt_i32_f32 330 v_cvt_f16_f32 331 v_cvt_f32_f16 332 v_cvt_rpi_i32_f32
        333 v_cvt_flr_i32_f32 335 v_cvt_f32_f64 336 v_cvt_f64_f32 337 v_cvt_f32_ubyte0 338 v_cvt_f32_ubyte1 339
        v_cvt_f32_ubyte2 340 v_cvt_f32_ubyte3 341 v_cvt_u32_f64 342 v_cvt_f64_u32 343 v_trunc_f64 344 v_ceil_f64 345
        v_rndne_f64 346 v_floor_f64 347 v_fract_f32 348 v_trunc_f32 349 v_ceil_f32 350 v_rndne_f32 351 v_floor_f32 352
        v_exp_f32 353 v_log_f32 354 v_rcp_f32 355 v_rcp_iflag_f32 356 v_rsq_f32 357 v_rcp_f64 358 v_rsq_f64 359
        v_sqrt_f32 360 v_sqrt_f64 361 v_sin_f32 362 v_cos_f32 363 v_not_b32 364 v_bfrev_b32 365 v_ffbh_u32 366
        v_ffbl_b32 367 v_ffbh_i32 368 v_frexp_exp_i32_f64 369 v_frexp_mant_f64 370 v_fract_f64 371 v_frexp_exp_i32_f32
        372 v_frexp_mant_f32 376 v_mov_b64 377 v_cvt_f16_u16 378 v_cvt_f16_i16 379 v_cvt_u16_f16 380 v_cvt_i16_f16 381
        v_rcp_f16 382 v_sqrt_f16 383 v_rsq_f16 384 v_log_f16 385 v_exp_f16 386 v_frexp_mant_f16 387
        v_frexp_exp_i16_f16 388 v_floor_f16 389 v_ceil_f16 390 v_trunc_f16 391 v_rndne_f16 392 v_fract_f16 393
        v_sin_f16 394 v_cos_f16 404 v_cvt_f32_fp8 405 v_cvt_f32_bf8 406 v_cvt_pk_f32_fp8 407 v_cvt_pk_f32_bf8 409
        v_permlane16_swap_b32 410 v_permlane32_swap_b32 411 v_cvt_f32_bf16 450 v_mad_i32_i24 451 v_mad_u32_u24 456
        v_bfe_u32 457 v_bfe_i32 458 v_bfi_b32 459 v_fma_f32 460 v_fma_f64 461 v_lerp_u8 462 v_alignbit_b32 463
        v_alignbyte_b32 464 v_min3_f32 465 v_min3_i32 466 v_min3_u32 467 v_max3_f32 468 v_max3_i32 469 v_max3_u32 470
        v_med3_f32 471 v_med3_i32 472 v_med3_u32 473 v_sad_u8 474 v_sad_hi_u8 475 v_sad_u16 476 v_sad_u32 477
        v_cvt_pk_u8_f32 478 v_div_fixup_f32 479 v_div_fixup_f64 480 v_div_scale_f32 481 v_div_scale_f64 482
        v_div_fmas_f32 483 v_div_fmas_f64 488 v_mad_u64_u32 489 v_mad_i64_i32 493 v_perm_b32 497 v_mad_u32_u16 498
        v_mad_i32_i16 499 v_xad_u32 500 v_min3_f16 501 v_min3_i16 502 v_min3_u16 503 v_max3_f16 504 v_max3_i16 505
        v_max3_u16 506 v_med3_f16 507 v_med3_i16 508 v_med3_u16 509 v_lshl_add_u32 510 v_add_lshl_u32 511 v_add3_u32
        512 v_lshl_or_b32 513 v_and_or_b32 514 v_or3_b32 516 v_mad_u16 517 v_mad_i16 518 v_fma_f16 520 v_lshl_add_u64
        563 v_bitop3_b16 564 v_bitop3_b32 613 v_ashr_pk_i8_i32 614 v_ashr_pk_u8_i32 615 v_cvt_pk_f16_f32 616
        v_cvt_pk_bf16_f32 640 v_add_f64 641 v_mul_f64 642 v_min_f64 643 v_max_f64 644 v_ldexp_f64 645 v_mul_lo_u32 646
        v_mul_hi_u32 647 v_mul_hi_i32 648 v_ldexp_f32 649 v_readlane_b32 650 v_writelane_b32 651 v_bcnt_u32_b32 652
        v_mbcnt_lo_u32_b32 653 v_mbcnt_hi_u32_b32 655 v_lshlrev_b64 656 v_lshrrev_b64 657 v_ashrrev_i64 659 v_bfm_b32
        660 v_cvt_pknorm_i16_f32 661 v_cvt_pknorm_u16_f32 662 v_cvt_pkrtz_f16_f32 663 v_cvt_pk_u16_u32 664
        v_cvt_pk_i16_i32 668 v_add_i32 669 v_sub_i32 670 v_add_i16 671 v_sub_i16 672 v_pack_b32_f16 673
        v_mul_legacy_f32 674 v_cvt_pk_fp8_f32 675 v_cvt_pk_bf8_f32 680 v_minimum3_f32 681 v_maximum3_f32
    """,
    "VOP3P": """
        0 v_pk_mad_i16 1 v_pk_mul_lo_u16 2 v_pk_add_i16 3 v_pk_sub_i16 4 v_pk_lshlrev_b16 5 v_pk_lshrrev_b16 6
        v_pk_ashrrev_i16 7 v_pk_max_i16 8 v_pk_min_i16 9 v_pk_mad_u16 10 v_pk_add_u16 11 v_pk_sub_u16 12 v_pk_max_u16
        13 v_pk_min_u16 14 v_pk_fma_f16 15 v_pk_add_f16 16 v_pk_mul_f16 17 v_pk_min_f16 18 v_pk_max_f16 26
        v_dot2_f32_bf16 27 v_pk_minimum3_f16 28 v_pk_maximum3_f16 32 v_fma_mix_f32 33 v_fma_mixlo_f16 34
        v_fma_mixhi_f16 35 v_dot2_f32_f16 38 v_dot2_i32_i16 39 v_dot2_u32_u16 40 v_dot4_i32_i8 41 v_dot4_u32_u8 42
        v_dot8_i32_i4 43 v_dot8_u32_u4 48 v_pk_fma_f32 49 v_pk_mul_f32 50 v_pk_add_f32 51 v_pk_mov_b32 88
        v_accvgpr_read_b32 89 v_accvgpr_write_b32
    """,
    "VOPC": """
        16 v_cmp_class_f32 17 v_cmpx_class_f32 18 v_cmp_class_f64 19 v_cmpx_class_f64 20 v_cmp_class_f16 21
        v_cmpx_class_f16 33 v_cmp_lt_f16 34 v_cmp_eq_f16 35 v_cmp_le_f16 36 v_cmp_gt_f16 37 v_cmp_lg_f16 38
        v_cmp_ge_f16 39 v_cmp_o_f16 40 v_cmp_u_f16 41 v_cmp_nge_f16 42 v_cmp_nlg_f16 43 v_cmp_ngt_f16 44 v_cmp_nle_f16
        45 v_cmp_neq_f16 46 v_cmp_nlt_f16 49 v_cmpx_lt_f16 50 v_cmpx_eq_f16 51 v_cmpx_le_f16 52 v_cmpx_gt_f16 53
        v_cmpx_lg_f16 54 v_cmpx_ge_f16 55 v_cmpx_o_f16 56 v_cmpx_u_f16 57 v_cmpx_nge_f16 58 v_cmpx_nlg_f16 59
        v_cmpx_ngt_f16 60 v_cmpx_nle_f16 61 v_cmpx_neq_f16 62 v_cmpx_nlt_f16 65 v_cmp_lt_f32 66 v_cmp_eq_f32 67
        v_cmp_le_f32 68 v_cmp_gt_f32 69 v_cmp_lg_f32 70 v_cmp_ge_f32 71 v_cmp_o_f32 72 v_cmp_u_f32 73 v_cmp_nge_f32 74
        v_cmp_nlg_f32 75 v_cmp_ngt_f32 76 v_cmp_nle_f32 77 v_cmp_neq_f32 78 v_cmp_nlt_f32 81 v_cmpx_lt_f32 82
        v_cmpx_eq_f32 83 v_cmpx_le_f32 84 v_cmpx_gt_f32 85 v_cmpx_lg_f32 86 v_cmpx_ge_f32 87 v_cmpx_o_f32 88
        v_cmpx_u_f32 89 v_cmpx_nge_f32 90 v_cmpx_nlg_f32 91 v_cmpx_ngt_f32 92 v_cmpx_nle_f32 93 v_cmpx_neq_f32 94
        v_cmpx_nlt_f32 97 v_cmp_lt_f64 98 v_cmp_eq_f64 99 v_cmp_le_f64 100 v_cmp_gt_f64 101 v_cmp_lg_f64 102
        v_cmp_ge_f64 103 v_cmp_o_f64 104 v_cmp_u_f64 105 v_cmp_nge_f64 106 v_cmp_nlg_f64 107 v_cmp_ngt_f64 108
        v_cmp_nle_f64 109 v_cmp_neq_f64 110 v_cmp_nlt_f64 113 v_cmpx_lt_f64 114 v_cmpx_eq_f64 115 v_cmpx_le_f64 116
        v_cmpx_gt_f64 117 v_cmpx_lg_f64 118 v_cmpx_ge_f64 119 v_cmpx_o_f64 120 v_cmpx_u_f64 121 v_cmpx_nge_f64 122
        v_cmpx_nlg_f64 123 v_cmpx_ngt_f64 124 v_cmpx_nle_f64 125 v_cmpx_neq_f64 126 v_cmpx_nlt_f64 161 v_cmp_lt_i16
        162 v_cmp_eq_i16 163 v_cmp_le_i16 164 v_cmp_gt_i16 165 v_cmp_ne_i16 166 v_cmp_ge_i16 169 v_cmp_lt_u16 170
        v_cmp_eq_u16 171 v_cmp_le_u16 172 v_cmp_gt_u16 173 v_cmp_ne_u16 174 v_cmp_ge_u16 177 v_cmpx_lt_i16 178
        v_cmpx_eq_i16 179 v_cmpx_le_i16 180 v_cmpx_gt_i16 181 v_cmpx_ne_i16 182 v_cmpx_ge_i16 185 v_cmpx_lt_u16 186
        v_cmpx_eq_u16 187 v_cmpx_le_u16 188 v_cmpx_gt_u16 189 v_cmpx_ne_u16 190 v_cmpx_ge_u16 193 v_cmp_lt_i32 194
        v_cmp_eq_i32 195 v_cmp_le_i32 196 v_cmp_gt_i32 197 v_cmp_ne_i32 198 v_cmp_ge_i32 201 v_cmp_lt_u32 202
        v_cmp_eq_u32 203 v_cmp_le_u32 204 v_cmp_gt_u32 205 v_cmp_ne_u32 206 v_cmp_ge_u32 209 v_cmpx_lt_i32 210
        v_cmpx_eq_i32 211 v_cmpx_le_i32 212 v_cmpx_gt_i32 213 v_cmpx_ne_i32 214 v_cmpx_ge_i32 217 v_cmpx_lt_u32 218
        v_cmpx_eq_u32 219 v_cmpx_le_u32 220 v_cmpx_gt_u32 221 v_cmpx_ne_u32 222 v_cmpx_ge_u32 225 v_cmp_lt_i64 226
        v_cmp_eq_i64 227 v_cmp_le_i64 228 v_cmp_gt_i64 229 v_cmp_ne_i64 230 v_cmp_ge_i64 233 v_cmp_lt_u64 234
        v_cmp_eq_u64 235 v_cmp_le_u64 236 v_cmp_gt_u64 237 v_cmp_ne_u64 238 v_cmp_ge_u64 241 v_cmpx_lt_i64 242
        v_cmpx_eq_i64 243 v_cmpx_le_i64 244 v_cmpx_gt_i64 245 v_cmpx_ne_i64 246 v_cmpx_ge_i64 249 v_cmpx_lt_u64 250
        v_cmpx_eq_u64 251 v_cmpx_le_u64 252 v_cmpx_gt_u64 253 v_cmpx_ne_u64 254 v_cmpx_ge_u64
    """,
}


def _read(text: str) -> dict[int, str]:
    words = text.split()
    return {int(number): name for number, name in zip(words[::2], words[1::2], strict=True)}


OPCODES: dict[str, dict[int, str]] = {format_: _read(text) for format_, text in _LISTS.items()}
