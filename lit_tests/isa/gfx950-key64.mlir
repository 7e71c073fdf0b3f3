// RUN: %compile --target gfx950 --schedule pairs_m16 --emit=isa %s | %filecheck %s

// 64-bit keys: the grid may be larger than buffer offsets reach, so it is reached by global addresses.

func.func @conv(%coords: !spconv.coords<64>, %features: tensor<?x16xbf16>, %weight: tensor<16x3x3x3x16xbf16>) -> tensor<?x16xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x16xbf16>, tensor<16x3x3x3x16xbf16>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}

// CHECK-LABEL: fill_grid_k64_t27_b256:
// CHECK-COUNT-4: global_store_dwordx4
// CHECK: s_endpgm

// CHECK-LABEL: scatter_rows_k64_h1x1x1_b256:
// CHECK: global_atomic_umin
// CHECK-NOT: cmpswap
// CHECK: s_endpgm

// CHECK-LABEL: lookup_k64_3x3x3_d1x1x1_b256:
// CHECK: global_load_dword
// CHECK: buffer_store_dword
// CHECK: s_endpgm
