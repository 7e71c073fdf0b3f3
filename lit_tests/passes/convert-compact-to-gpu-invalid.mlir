// RUN: %opt %s -p convert-map-to-gpu{target=gfx950},convert-compact-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-compact-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @no_schedule(%coords: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // expected-error @below {{the op has no schedule}}
  // expected-note @below {{run choose-schedule first}}
  %pairs = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// -----

func.func @for_cores(%coords: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // expected-error @below {{schedule "chunk_tap_row" is not one for a GPU}}
  // expected-note @below {{accepted here: "tap_tile_row"}}
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 256}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// -----

func.func @tiles_too_large(%coords: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // expected-error @below {{gemm tiles of 512 pairs}}
  // expected-note @below {{padding reaches 256 pairs at most}}
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 512}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// -----

func.func @other_blocks(%coords: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // expected-error @below {{blocks of 128 rows}}
  // expected-note @below {{accepted here: 256}}
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 128, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}
