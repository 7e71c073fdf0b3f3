// RUN: %opt %s -p convert-map-to-loops{target=x86-64-v3},convert-compact-to-loops{target=x86-64-v3} --split-input-file --verify-diagnostics

func.func @unscheduled(%coords: !spconv.coords<32>) -> !spconv.pairs<1> {
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.map<1>
  // expected-error@+2 {{the op has no schedule}}
  // expected-note@+1 {{run choose-schedule first}}
  %1 = "spconv.compact"(%0) : (!spconv.map<1>) -> !spconv.pairs<1>
  return %1 : !spconv.pairs<1>
}

// -----

func.func @of_a_gpu(%coords: !spconv.coords<32>) -> !spconv.pairs<1> {
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.map<1>
  // expected-error@+2 {{schedule "tap_tile_row" is not one for processors}}
  // expected-note@+1 {{accepted here: chunk_tap_row}}
  %1 = "spconv.compact"(%0) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16 : i64}>} : (!spconv.map<1>) -> !spconv.pairs<1>
  return %1 : !spconv.pairs<1>
}

// -----

func.func @incomplete(%coords: !spconv.coords<32>) -> !spconv.pairs<1> {
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.map<1>
  // expected-error@+2 {{schedule "chunk_tap_row" lacks chunk_rows}}
  // expected-note@+1 {{it takes chunk_rows}}
  %1 = "spconv.compact"(%0) {schedule = #spconv.schedule<"chunk_tap_row", {}>} : (!spconv.map<1>) -> !spconv.pairs<1>
  return %1 : !spconv.pairs<1>
}
