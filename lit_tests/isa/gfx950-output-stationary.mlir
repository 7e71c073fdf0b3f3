// RUN: %compile --target gfx950 --schedule output_stationary --emit=isa %s | %filecheck %s
// RUN: %compile --target gfx950 --schedule output_stationary --emit=isa %s | %filecheck %s --check-prefix=NONE

// The gemm of schedule output_stationary at 64 → 64 channels. Weights go from memory to local memory without passing
// through registers, two items ahead; what is waited for are counted loads, never all of them, until the loop is left.

func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x64xbf16>, %weight: tensor<64x3x3x3x64xbf16>) -> tensor<?x64xbf16> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<32>, tensor<?x64xbf16>, tensor<64x3x3x3x64xbf16>) -> tensor<?x64xbf16>
  return %0 : tensor<?x64xbf16>
}

// CHECK-LABEL: gemm_output_stationary_bf16_t27_64x64_n64x16_k32x8_s64_w8x2x2_l3_relu_bf16:
// CHECK: s_waitcnt vmcnt({{[1-9]}}
// CHECK: s_barrier
// CHECK: buffer_load_dwordx4 v{{[0-9]+}}, s[{{[0-9:]+}}], 0 offen lds
// CHECK: buffer_load_dwordx4 v[{{[0-9:]+}}], v{{[0-9]+}}, s[{{[0-9:]+}}], 0 offen
// CHECK: ds_read_b128
// CHECK: v_mfma_f32_16x16x32_bf16
// Sums stay where they are: no copies between two products of a branch.
// CHECK-NOT: v_mov
// CHECK: v_mfma_f32_16x16x32_bf16
// CHECK: s_barrier
// CHECK: s_barrier
// The result is rounded and written by the same kernel.
// CHECK: v_cvt_pk_bf16_f32
// CHECK: buffer_store_dwordx2
// CHECK: s_endpgm
// CHECK: .amdhsa_group_segment_fixed_size 24828
// CHECK: .amdhsa_private_segment_fixed_size 0

// NONE-NOT: scratch_
// NONE-NOT: buffer_atomic_add_f32
// NONE: gemm_output_stationary_bf16_t27_64x64_n64x16_k32x8_s64_w8x2x2_l3_relu_bf16:
// NONE-NOT: scratch_
// NONE-NOT: buffer_atomic_add_f32
// NONE-NOT: ds_write_b128
// NONE: .amdgpu_metadata
// NONE-NOT: spill_count: {{[1-9]}}
// NONE-NOT: .agpr_count: {{ *}}{{[1-9]}}
// NONE-NOT: hidden_
// NONE: .end_amdgpu_metadata
