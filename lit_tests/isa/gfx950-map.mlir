// RUN: %compile --target gfx950 --schedule pairs_m16 --emit=isa %s | %filecheck %s

// The kernels that make pairs.

func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<16x3x3x3x16xbf16>) -> tensor<?x16xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xbf16>, tensor<16x3x3x3x16xbf16>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}

// CHECK-LABEL: fill_grid_k32_t27_b256:
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

// A chunk of the table is read with sixteen loads in flight; states are read past the caches of a unit.
// CHECK-LABEL: compact_pairs_t27_m16:
// CHECK: global_atomic_add {{.*}} sc0
// CHECK: s_barrier
// CHECK-COUNT-16: buffer_load_dword
// CHECK-NOT: buffer_wbl2
// CHECK: global_load_dword {{.*}} sc1
// CHECK: s_barrier
// CHECK: v_bcnt_u32_b32
// CHECK: s_endpgm
