// RUN: %compile --target gfx950 --schedule pairs_m16 --emit=isa --kernel 3 --c-in 64 --c-out 64 --dtype f16 --out-dtype f16 | %filecheck %s --check-prefix=F16
// RUN: %compile --target gfx950 --schedule pairs_m16 --emit=isa --kernel 3 --c-in 64 --c-out 64 --dtype f32 | %filecheck %s --check-prefix=F32
// RUN: %compile --target gfx950 --schedule pairs_m16 --emit=isa --kernel 3 --c-in 512 --c-out 512 --dtype bf16 --activation relu | %filecheck %s --check-prefix=WIDE
// RUN: %compile --target gfx950 --schedule pairs_m16 --emit=isa --kernel 3 --c-in 3 --c-out 16 --dtype bf16 | %filecheck %s --check-prefix=NARROW

// Half precision: the same shape, rounded by pairs at the end.
// F16-LABEL: gemm_pairs_m16_f16_t27_64x64
// F16: v_mfma_f32_16x16x32_f16
// F16: s_endpgm
// F16-LABEL: apply_none_f16_64:
// F16: v_cvt_pk{{.*}}f16

// f32 is IEEE f32: 16 bytes of a row are four instructions of one element a lane.
// F32-LABEL: gemm_pairs_m16_f32_t27_64x64
// F32-COUNT-5: buffer_load_dwordx4
// F32-COUNT-16: v_mfma_f32_16x16x4_f32
// F32-NOT: v_mfma
// F32: s_cbranch_scc1

// From 512 channels on: eight panels a wave, two steps of loads in flight.
// WIDE-LABEL: gemm_pairs_m16_bf16_t27_512x512_n128x16_k32x8_u2_w2048:
// WIDE: .p2align
// WIDE-COUNT-18: buffer_load_dwordx4
// WIDE-NOT: buffer_load
// WIDE-COUNT-16: v_mfma_f32_16x16x32_bf16
// WIDE-NOT: v_mfma
// WIDE: s_cbranch_scc1
// WIDE: .amdhsa_private_segment_fixed_size 0
// WIDE-LABEL: apply_relu_bf16_512:
// WIDE: v_cvt_pk_bf16_f32

// Rows of 6 bytes: channels are loaded one by one, and none beyond the third.
// NARROW-LABEL: gemm_pairs_m16_bf16_t27_3x16
// NARROW-COUNT-3: buffer_load_ushort
// NARROW-NOT: buffer_load_ushort
// NARROW: v_mfma_f32_16x16x32_bf16
