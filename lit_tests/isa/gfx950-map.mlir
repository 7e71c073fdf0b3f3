// RUN: %compile --target gfx950 --emit=isa %s | %filecheck %s

// The kernels that make pairs.

func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<16x3x3x3x16xbf16>) -> tensor<?x16xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xbf16>, tensor<16x3x3x3x16xbf16>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}

// CHECK-LABEL: fill_grid_k32_b256:
// CHECK-COUNT-4: buffer_store_dwordx4
// CHECK: s_endpgm

// CHECK-LABEL: scatter_rows_k32_h1x1x1_b256:
// CHECK: buffer_load_dwordx4
// CHECK: s_cbranch_execz
// CHECK: buffer_atomic_umin
// CHECK: s_endpgm

// A line of three taps is one load; nine stores, the distance of a tap in the instruction, the plane in a scalar.
// CHECK-LABEL: lookup_k32_3x3x3_d1x1x1_b256:
// CHECK-COUNT-3: buffer_load_dwordx3
// CHECK-NOT: readfirstlane
// CHECK: buffer_store_dword {{.*}} s{{[0-9]+}} offen
// CHECK: buffer_store_dword {{.*}} offen offset:64
// CHECK: buffer_store_dword {{.*}} offen offset:512
// CHECK: s_endpgm

// CHECK-LABEL: count_tiles_t27:
// CHECK-COUNT-4: buffer_load_dwordx4
// CHECK-NOT: atomic
// CHECK: s_barrier
// CHECK: s_endpgm

// CHECK-LABEL: scan_totals_t27_m16:
// CHECK-NOT: atomic
// CHECK: .amdhsa_group_segment_fixed_size 108

// CHECK-LABEL: write_pairs_t27_m16:
// CHECK-NOT: atomic
// CHECK: v_bcnt_u32_b32
// CHECK: s_endpgm
