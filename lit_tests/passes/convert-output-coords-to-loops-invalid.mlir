// RUN: %opt %s -p convert-output-coords-to-loops{target=x86-64-v3} --split-input-file --verify-diagnostics

func.func @unscheduled(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // expected-error@+2 {{the op has no schedule}}
  // expected-note@+1 {{run choose-schedule first}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// -----

func.func @of_a_gpu(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // expected-error@+2 {{schedule "dense_grid" is not one for processors}}
  // expected-note@+1 {{accepted here: sorted_keys}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"dense_grid", {}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// -----

// One run gives one box of outputs.
func.func @two(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  // expected-error@+2 {{this is the second spconv.output_coords of the function}}
  // expected-note@+1 {{supported: one; equal ones are merged by cse}}
  %1 = "spconv.output_coords"(%0) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %1 : !spconv.coords<32>
}
