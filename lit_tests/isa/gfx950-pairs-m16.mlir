// RUN: %compile --target gfx950 --schedule pairs_m16 --emit=isa %s | %filecheck %s
// RUN: %compile --target gfx950 --schedule pairs_m16 --emit=isa %s | %filecheck %s --check-prefix=NONE

// The gemm of schedule pairs_m16 at 128 → 128 channels: per step over K one gathered run of features and one run of
// each of four panels, 16 bytes a lane each, all of them issued before four matrix instructions; f32 atomics, 64 bytes of
// an output row at a time. No local memory, no scratch, no spills, no loop over lanes that disagree.

func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x128xbf16>, %weight: tensor<128x3x3x3x128xbf16>) -> tensor<?x128xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x128xbf16>, tensor<128x3x3x3x128xbf16>) -> tensor<?x128xf32>
  return %0 : tensor<?x128xf32>
}

// CHECK-LABEL: gemm_pairs_m16_bf16_t27_128x128_n64x16_k32x8_u1_w4096:
// The number of tiles, and per tile its tap, are scalar loads.
// CHECK: s_load_dword s{{[0-9]+}}, s[{{[0-9:]+}}], 0x6c
// CHECK: buffer_load_dword v{{[0-9]+}}, v{{[0-9]+}}, s[{{[0-9:]+}}], s{{[0-9]+}} offen
// CHECK: buffer_load_dwordx4
// CHECK: s_load_dword s
// CHECK: .p2align
// CHECK-COUNT-5: buffer_load_dwordx4 v[{{[0-9:]+}}], v{{[0-9]+}}, s[{{[0-9:]+}}], s{{[0-9]+}} offen
// CHECK-NOT: buffer_load
// CHECK: v_mfma_f32_16x16x32_bf16
// CHECK-NOT: s_waitcnt
// CHECK-COUNT-3: v_mfma_f32_16x16x32_bf16
// CHECK-NOT: v_mfma
// CHECK: s_cbranch_scc1
// Four rows a lane, each behind a branch of its own.
// CHECK: s_and_saveexec_b64
// CHECK: buffer_atomic_add_f32 v{{[0-9]+}}, v{{[0-9]+}}, s[{{[0-9:]+}}], s{{[0-9]+}} offen
// CHECK-NEXT: buffer_atomic_add_f32 {{.*}} offset:64
// CHECK-NEXT: buffer_atomic_add_f32 {{.*}} offset:128
// CHECK-NEXT: buffer_atomic_add_f32 {{.*}} offset:192
// CHECK: s_endpgm
// CHECK: .amdhsa_group_segment_fixed_size 0
// CHECK: .amdhsa_private_segment_fixed_size 0

// Of all kernels: no scratch, no accumulation registers, no compare-and-swap loops, no cache flushes.
// NONE-NOT: scratch_
// NONE-NOT: v_accvgpr
// NONE-NOT: cmpswap
// NONE-NOT: buffer_wbl2
// NONE: .amdgpu_metadata
// NONE-NOT: spill_count: {{[1-9]}}
// NONE-NOT: .agpr_count: {{ *}}{{[1-9]}}
// NONE: .end_amdgpu_metadata
