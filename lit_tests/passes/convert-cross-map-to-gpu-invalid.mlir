// RUN: %opt %s -p convert-cross-map-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-cross-map-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @no_schedule(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.cross_map<27> {
  // expected-error @below {{the op has no schedule}}
  // expected-note @below {{run choose-schedule first}}
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}

// -----

func.func @for_cores(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.cross_map<27> {
  // expected-error @below {{schedule "sorted_keys" is not one for a GPU}}
  // expected-note @below {{accepted here: "coarse_grid"}}
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}

// -----

func.func @without_block(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.cross_map<27> {
  // expected-error @below {{schedule "coarse_grid" lacks block}}
  // expected-note @below {{it takes block}}
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}

// -----

func.func @half_a_wave(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.cross_map<27> {
  // expected-error @below {{a block of 96 lanes}}
  // expected-note @below {{gfx950 takes whole waves of 64, at most 1024 lanes}}
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 96 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}

// -----

func.func @two(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.cross_map<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // expected-error @below {{a second map between two sets}}
  // expected-note @below {{supported: one in a function, whose box the plan's is}}
  %other = "spconv.cross_map"(%coarse, %fine) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}
