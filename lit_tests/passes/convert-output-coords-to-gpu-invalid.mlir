// RUN: %opt %s -p convert-output-coords-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-output-coords-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @no_schedule(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // expected-error @below {{the op has no schedule}}
  // expected-note @below {{run choose-schedule first}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// -----

func.func @for_cores(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // expected-error @below {{schedule "sorted_keys" is not one for a GPU}}
  // expected-note @below {{accepted here: "marked_cells"}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// -----

func.func @without_block(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // expected-error @below {{schedule "marked_cells" lacks block}}
  // expected-note @below {{it takes block}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"marked_cells", {}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// -----

func.func @half_a_wave(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // expected-error @below {{a block of 96 lanes}}
  // expected-note @below {{gfx950 takes whole waves of 64, at most 1024 lanes}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"marked_cells", {block = 96 : i64}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// -----

// One run gives one box of outputs.
func.func @two(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"marked_cells", {block = 256 : i64}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  // expected-error @below {{a second set of outputs}}
  // expected-note @below {{supported: one in a function, whose box the plan's is}}
  %1 = "spconv.output_coords"(%0) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"marked_cells", {block = 256 : i64}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %1 : !spconv.coords<32>
}

// -----

// The box of fine outputs is not that of the coarse set, which a map needs.
func.func @used(%coords: !spconv.coords<32>) -> !spconv.cross_map<27> {
  // expected-error @below {{the outputs of a transposed op are used in the same function}}
  // expected-note @below {{supported: outputs that the function returns; those of a strided op have one box with their map}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = true, schedule = #spconv.schedule<"marked_cells", {block = 256 : i64}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  %map = "spconv.cross_map"(%0, %coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}

// -----

func.func @without_items(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // expected-error @below {{schedule "sorted_candidates" lacks items}}
  // expected-note @below {{it takes items}}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"sorted_candidates", {block = 256 : i64}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}
