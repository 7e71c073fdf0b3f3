// RUN: %opt %s -p convert-cross-map-to-loops{target=x86-64-v3} --split-input-file --verify-diagnostics

func.func @unscheduled(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.cross_map<8> {
  // expected-error@+2 {{the op has no schedule}}
  // expected-note@+1 {{run choose-schedule first}}
  %0 = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  return %0 : !spconv.cross_map<8>
}

// -----

// One run gives one box of keys.
func.func @two(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.cross_map<8> {
  %0 = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  // expected-error@+2 {{this is the second spconv.cross_map of the function}}
  // expected-note@+1 {{supported: one; equal ones are merged by cse}}
  %1 = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 1, 1, 1>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  return %1 : !spconv.cross_map<8>
}
