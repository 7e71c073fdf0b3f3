// RUN: %opt %s -p convert-map-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-map-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @no_schedule(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // expected-error @below {{the op has no schedule}}
  // expected-note @below {{run choose-schedule first}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}

// -----

func.func @for_cores(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // expected-error @below {{schedule "sorted_keys" is not one for a GPU}}
  // expected-note @below {{accepted here: "dense_grid"}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}

// -----

func.func @no_block(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // expected-error @below {{schedule "dense_grid" lacks block}}
  // expected-note @below {{it takes block}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}

// -----

func.func @half_a_wave(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // expected-error @below {{a block of 96 lanes}}
  // expected-note @below {{gfx950 takes whole waves of 64, at most 1024 lanes}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 96}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}

// -----

func.func @no_items(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // expected-error @below {{schedule "z_delta" lacks items}}
  // expected-note @below {{it takes block, items}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"z_delta", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}
