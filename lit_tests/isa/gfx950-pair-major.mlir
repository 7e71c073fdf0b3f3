// RUN: %compile --target gfx950 --schedule pair_major --emit=isa %s | %filecheck %s
// RUN: %compile --target gfx950 --schedule pair_major --emit=isa %s | %filecheck %s --check-prefix=NONE

// The gemm of schedule pair_major at 256 → 128 channels: four stages of K for a tile of 256 pairs, all of them in the body
// of the loop over tiles. Weights go to local memory without passing through registers, two items ahead; what is waited
// for are counted loads, while the tile is multiplied.

func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x256xbf16>, %weight: tensor<128x3x3x3x256xbf16>) -> tensor<?x128xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x256xbf16>, tensor<128x3x3x3x256xbf16>) -> tensor<?x128xf32>
  return %0 : tensor<?x128xf32>
}

// CHECK-LABEL: gemm_pair_major_bf16_t27_256x128_n128x16_k32x8_s64_w4x2x4_g256:
// CHECK: buffer_load_dwordx4 v{{[0-9]+}}, s[{{[0-9:]+}}], 0 offen lds
// CHECK: s_barrier
// CHECK: buffer_load_dwordx4 v{{[0-9]+}}, s[{{[0-9:]+}}], 0 offen lds
// CHECK: buffer_load_dwordx4 v[{{[0-9:]+}}], v{{[0-9]+}}, s[{{[0-9:]+}}], 0 offen
// CHECK: ds_read_b128
// The first product of a tile begins at zero.
// CHECK: v_mfma_f32_16x16x32_bf16 v[{{[0-9:]+}}], v[{{[0-9:]+}}], v[{{[0-9:]+}}], 0
// CHECK: s_waitcnt vmcnt({{[1-9]}}
// CHECK: s_barrier
// CHECK: v_mfma_f32_16x16x32_bf16
// CHECK: s_barrier
// CHECK: v_mfma_f32_16x16x32_bf16
// CHECK: s_barrier
// CHECK: v_mfma_f32_16x16x32_bf16
// Then sums are exchanged between the halves of lines, and added: two pairs of panels, 128 bytes apart.
// CHECK: v_permlane16_swap_b32
// CHECK: s_and_saveexec_b64
// CHECK: buffer_atomic_add_f32 v{{[0-9]+}}, v{{[0-9]+}}, s[{{[0-9:]+}}], s{{[0-9]+}} offen
// CHECK-NEXT: buffer_atomic_add_f32 {{.*}} offset:128
// CHECK: s_endpgm
// CHECK: .amdhsa_group_segment_fixed_size 49152
// CHECK: .amdhsa_private_segment_fixed_size 0

// NONE-NOT: scratch_
// NONE-NOT: v_accvgpr
// NONE-NOT: ds_write_b128
// NONE-NOT: cmpswap
// NONE: .amdgpu_metadata
// NONE-NOT: spill_count: {{[1-9]}}
// NONE-NOT: .agpr_count: {{ *}}{{[1-9]}}
// NONE-NOT: hidden_
// NONE: .end_amdgpu_metadata
