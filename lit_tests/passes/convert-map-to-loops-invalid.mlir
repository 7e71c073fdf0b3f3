// RUN: %opt %s -p convert-map-to-loops{target=x86-64-v3} --split-input-file --verify-diagnostics

func.func @unscheduled(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // expected-error@+2 {{the op has no schedule}}
  // expected-note@+1 {{run choose-schedule first}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}

// -----

func.func @of_a_gpu(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // expected-error@+2 {{schedule "dense_grid" is not one for processors}}
  // expected-note@+1 {{accepted here: sorted_keys}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}
