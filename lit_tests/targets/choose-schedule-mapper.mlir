// RUN: %opt %s -p 'choose-schedule{target=gfx950 schedule=pairs_m16 mapper=z_delta}' | %filecheck %s
// RUN: not %opt %s -p 'choose-schedule{target=x86-64-v3 mapper=z_delta}' 2>&1 | %filecheck %s --check-prefix=CORES
// RUN: not %opt %s -p 'choose-schedule{target=gfx950 mapper=coarse_keys}' 2>&1 | %filecheck %s --check-prefix=BETWEEN
// RUN: not %opt %s -p 'choose-schedule{target=gfx950 mapper=sorted_candidates}' 2>&1 | %filecheck %s --check-prefix=OUTPUTS

// The mapper that is asked for replaces the schedule's own; only GPUs have a choice.

// CORES: error: the mapper that is asked for does not serve
// CORES: note: schedule 'z_delta': it builds submanifold maps on a GPU; chunk_stationary takes a map by "sorted_keys"
// BETWEEN: error: the mapper that is asked for does not serve
// BETWEEN: note: schedule 'coarse_keys': it builds maps between two sets on a GPU; {{.+}} takes a map by "dense_grid"

// OUTPUTS: error: the mapper that is asked for does not serve
// OUTPUTS: note: schedule 'sorted_candidates': it makes sets of outputs on a GPU; {{.+}} takes a map by "dense_grid"

// CHECK-LABEL: func.func @conv
func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xbf16>) -> tensor<?x32xf32> {
  // CHECK: "spconv.map"
  // CHECK-SAME: schedule = #spconv.schedule<"z_delta", {block = 256 : i64, items = 4 : i64}>
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: "spconv.compact"
  // CHECK-SAME: schedule = #spconv.schedule<"tap_tile_row"
  %pairs = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x3x3x3x16xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x32xf32>
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return %sum : tensor<?x32xf32>
}
