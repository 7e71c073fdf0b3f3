// RUN: %compile --target gfx950 --schedule output_stationary_tall --emit=isa %s | %filecheck %s
// RUN: %compile --target gfx950 --schedule output_stationary_tall --emit=isa %s | %filecheck %s --check-prefix=NONE

// The gemm of schedule output_stationary_tall at 256 → 192 channels: two slices of six panels, so one loop for each form. A
// body has the four stages of a step, each with a place of its own for weights.

func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x256xbf16>, %weight: tensor<192x3x3x3x256xbf16>) -> tensor<?x192xbf16> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<32>, tensor<?x256xbf16>, tensor<192x3x3x3x256xbf16>) -> tensor<?x192xbf16>
  return %0 : tensor<?x192xbf16>
}

// CHECK-LABEL: gemm_output_stationary_tall_bf16_t27_256x192_n16x16_k64x8_w8x1x3or4_l3_relu_bf16:
// CHECK: s_waitcnt vmcnt({{[1-9]}}
// CHECK: s_barrier
// CHECK: buffer_load_dwordx4 v{{[0-9]+}}, s[{{[0-9:]+}}], 0 offen lds
// CHECK: buffer_load_dwordx4 v[{{[0-9:]+}}], v{{[0-9]+}}, s[{{[0-9:]+}}], 0 offen
// CHECK: ds_read_b128
// CHECK: v_mfma_f32_16x16x32_bf16
// The result is rounded and written by the same kernel.
// CHECK: v_cvt_pk_bf16_f32
// CHECK: buffer_store_dwordx2
// CHECK: s_endpgm
// CHECK: .amdhsa_private_segment_fixed_size 0

// NONE-NOT: scratch_
// NONE-NOT: buffer_atomic_add_f32
// NONE: gemm_output_stationary_tall_bf16_t27_256x192_n16x16_k64x8_w8x1x3or4_l3_relu_bf16:
// NONE-NOT: scratch_
// NONE-NOT: buffer_atomic_add_f32
// NONE-NOT: ds_write_b128
// NONE: .amdgpu_metadata
// NONE-NOT: spill_count: {{[1-9]}}
// NONE-NOT: .agpr_count: {{ *}}{{[1-9]}}
// NONE-NOT: hidden_
// NONE: .end_amdgpu_metadata
