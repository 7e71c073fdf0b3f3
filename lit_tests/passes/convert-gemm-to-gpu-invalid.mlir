// RUN: %opt %s -p convert-map-to-gpu,convert-compact-to-gpu,convert-weight-to-gpu,convert-gemm-to-gpu --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-gemm-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @no_schedule(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{the op has no schedule}}
  // expected-note @below {{run choose-schedule first}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @for_cores(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{schedule "chunk_stationary" is not one for a GPU}}
  // expected-note @below {{accepted here: "pairs_m16"}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"chunk_stationary", {}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @missing(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{schedule "pairs_m16" lacks k_unroll, waves}}
  // expected-note @below {{it takes tile_m, tile_n, mma_n, tile_k, chunk_k, k_unroll, waves}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @rows_of_the_instruction(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 32}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{the parameters of the schedule do not fit: }}
  // expected-note @below {{tile_m is the instruction's 16}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 32, tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @step(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{the parameters of the schedule do not fit: }}
  // expected-note @below {{tile_k is 4 chunk_k}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 48, mma_n = 16, tile_k = 64, chunk_k = 8, k_unroll = 1, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @chunk(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{the parameters of the schedule do not fit: }}
  // expected-note @below {{chunk_k is a multiple of the 8 that a lane holds}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 48, mma_n = 16, tile_k = 16, chunk_k = 4, k_unroll = 1, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @slice(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{the parameters of the schedule do not fit: }}
  // expected-note @below {{tile_n is a multiple of mma_n}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 40, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

// Packed without padding, but the gemm takes two slices of 48 channels.
func.func @other_weights(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 80, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{packed was laid out for another schedule}}
  // expected-note @below {{expected 9216 elements}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @other_pairs(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 32}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{tile_tap was laid out for another schedule}}
  // expected-note @below {{expected (rows ceildiv 16) * 3 elements}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @epilogue(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{epilogue "relu" in a schedule that does not own its output rows}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"relu">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

// Adding into an argument would change the caller's tensor.
func.func @init(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>, %other: tensor<?x80xf32>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{init is not the result of spconv.fill}}
  // expected-note @below {{a gemm adds into rows of its own}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %other) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @tile_of_pairs(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 128}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 80, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{the parameters of the schedule do not fit: }}
  // expected-note @below {{tile_m is waves / across times 32}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pair_major", {tile_m = 128, waves = 8, across = 1, fragments = 2, tile_n = 80, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 64, per_chiplet = 32}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

func.func @stage(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 256}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 80, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{the parameters of the schedule do not fit: }}
  // expected-note @below {{stage_k is a multiple of tile_k}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pair_major", {tile_m = 256, waves = 8, across = 1, fragments = 2, tile_n = 80, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 48, per_chiplet = 32}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}

// -----

// Pairs in tiles of 16 are those of another schedule.
func.func @small_tiles(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<80x1x1x3x32xbf16>) -> tensor<?x80xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 80, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<80x1x1x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x80xf32>
  // expected-error @below {{tile_tap was laid out for another schedule}}
  // expected-note @below {{expected (rows ceildiv 256) * 3 elements}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pair_major", {tile_m = 256, waves = 8, across = 1, fragments = 2, tile_n = 80, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 64, per_chiplet = 32}>} : (!spconv.pairs<3>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x80xf32>) -> tensor<?x80xf32>
  return %sum : tensor<?x80xf32>
}
