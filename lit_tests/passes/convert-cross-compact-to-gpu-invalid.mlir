// RUN: %opt %s -p convert-cross-map-to-gpu{target=gfx950},convert-cross-compact-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-cross-compact-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @no_schedule(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // expected-error @below {{the op has no schedule}}
  // expected-note @below {{run choose-schedule first}}
  %pairs = "spconv.cross_compact"(%map) {transposed = false} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// -----

func.func @for_cores(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // expected-error @below {{schedule "sorted_keys" is not one for a GPU}}
  // expected-note @below {{accepted here: "tap_tile_row"}}
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// -----

func.func @tiles_too_large(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // expected-error @below {{gemm tiles of 512 pairs}}
  // expected-note @below {{padding reaches 256 pairs at most}}
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"tap_tile_row", {tile_m = 512 : i64}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// -----

func.func @fine_outputs(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // expected-error @below {{a table of the outputs of a transposed op}}
  // expected-note @below {{supported: outputs are coarse}}
  %pairs = "spconv.cross_compact"(%map) {transposed = true, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// -----

func.func @other_blocks(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // expected-error @below {{blocks of 128 rows}}
  // expected-note @below {{accepted here: 256}}
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"sorted_tiles", {block_rows = 128 : i64, items = 4 : i64}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}
