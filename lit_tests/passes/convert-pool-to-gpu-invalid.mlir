// RUN: %opt %s -p convert-cross-map-to-gpu{target=gfx950},convert-cross-compact-to-gpu{target=gfx950},convert-pool-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-pool-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @no_schedule(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x20xbf16>) -> tensor<?x20xbf16> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  // expected-error @below {{the op has no schedule}}
  // expected-note @below {{run choose-schedule first}}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max"} : (!spconv.pairs<27>, tensor<?x20xbf16>) -> tensor<?x20xbf16>
  return %0 : tensor<?x20xbf16>
}

// -----

func.func @for_cores(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x20xbf16>) -> tensor<?x20xbf16> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  // expected-error @below {{schedule "sorted_keys" is not one for a GPU}}
  // expected-note @below {{accepted here: "row_pool"}}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max", schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.pairs<27>, tensor<?x20xbf16>) -> tensor<?x20xbf16>
  return %0 : tensor<?x20xbf16>
}

// -----

func.func @without_block(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x20xbf16>) -> tensor<?x20xbf16> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  // expected-error @below {{schedule "row_pool" lacks block}}
  // expected-note @below {{it takes block}}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max", schedule = #spconv.schedule<"row_pool", {}>} : (!spconv.pairs<27>, tensor<?x20xbf16>) -> tensor<?x20xbf16>
  return %0 : tensor<?x20xbf16>
}

// -----

func.func @half_a_wave(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x20xbf16>) -> tensor<?x20xbf16> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  // expected-error @below {{a block of 96 lanes}}
  // expected-note @below {{gfx950 takes whole waves of 64, at most 1024 lanes}}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max", schedule = #spconv.schedule<"row_pool", {block = 96 : i64}>} : (!spconv.pairs<27>, tensor<?x20xbf16>) -> tensor<?x20xbf16>
  return %0 : tensor<?x20xbf16>
}

// -----

func.func @pairs_of_a_gemm(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x20xbf16>) -> tensor<?x20xbf16> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16 : i64}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  // expected-error @below {{the pairs are not a table of outputs}}
  // expected-note @below {{supported: cross_compact with "output_table"}}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max", schedule = #spconv.schedule<"row_pool", {block = 256 : i64}>} : (!spconv.pairs<27>, tensor<?x20xbf16>) -> tensor<?x20xbf16>
  return %0 : tensor<?x20xbf16>
}
