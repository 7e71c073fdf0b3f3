// RUN: %opt %s -p choose-schedule{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p choose-schedule{target=gfx1} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET
// RUN: not %opt %s -p 'choose-schedule{target=gfx950 schedule=fast}' --split-input-file 2>&1 | %filecheck %s --check-prefix=SCHEDULE
// RUN: not %opt %s -p 'choose-schedule{target=x86-64-v3 schedule=pairs_m16}' --split-input-file 2>&1 | %filecheck %s --check-prefix=WANTED

// A gemm that no schedule serves is refused, with every schedule's reason.

// TARGET: error: unknown target 'gfx1'; accepted: auto, cpu, gfx950, gfx950-sim, x86-64-v4-bf16, x86-64-v4, x86-64-v3
// SCHEDULE: error: unknown schedule 'fast'; accepted: auto, pairs_m16, chunk_stationary
// WANTED: error: no schedule serves
// WANTED: note: schedule 'pairs_m16': it is for waves of a GPU, and x86-64-v3 has none
// WANTED-NOT: chunk_stationary

func.func @taps(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x9x9x9x16xbf16>) -> tensor<?x32xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 9, 9, 9>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<729>
  %pairs = "spconv.compact"(%map) : (!spconv.map<729>) -> !spconv.pairs<729>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x9x9x9x16xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x32xf32>
  // expected-error @below {{no schedule serves Problem(taps=729,}}
  // expected-note @below {{schedule 'pairs_m16': the kernel has 729 taps; at most 343 (7×7×7)}}
  // expected-note @below {{schedule 'chunk_stationary': it is for processor cores}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<729>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return %sum : tensor<?x32xf32>
}

// -----

// A GPU has kernels for submanifold maps only.
func.func @between_sets(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x2x2x2x16xbf16>) -> tensor<?x32xf32> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  %pairs = "spconv.cross_compact"(%map) {transposed = false} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x2x2x2x16xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coarse) : (!spconv.coords<32>) -> tensor<?x32xf32>
  // expected-error @below {{no schedule serves Problem(taps=8,}}
  // expected-note @below {{schedule 'pairs_m16': inputs and outputs are two coordinate sets; it takes the pairs of submanifold maps}}
  // expected-note @below {{schedule 'chunk_stationary': it is for processor cores}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<8>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return %sum : tensor<?x32xf32>
}

// -----

func.func @outputs(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // expected-error @below {{no schedule serves the coordinates of outputs on gfx950}}
  // expected-note @below {{schedule 'sorted_keys': it is for processor cores, and gfx950 is a GPU}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// -----

func.func @pool(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x16xf32>) -> tensor<?x16xf32> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  %pairs = "spconv.cross_compact"(%map) {transposed = false} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  // expected-error @below {{no schedule serves a pool on gfx950}}
  // expected-note @below {{schedule 'chunk_pool': it is for processor cores, and gfx950 is a GPU}}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max"} : (!spconv.pairs<8>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
