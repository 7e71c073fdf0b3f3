// RUN: %opt %s --split-input-file --verify-diagnostics

// Every rule of level_maps, broken once.

func.func @f(%coords: !spconv.coords<32>, %places: tensor<?xi32>) {
  // expected-error @below {{'spconv.level_maps' levels is [array<i64: 0, 3, 3, 3>]; accepted: an array of array<i64> with 10 numbers each}}
  "spconv.level_maps"(%coords, %places) {levels = [array<i64: 0, 3, 3, 3>], maps = []} : (!spconv.coords<32>, tensor<?xi32>) -> ()
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>, %places: tensor<?xi32>) {
  // expected-error @below {{'spconv.level_maps' maps is 27 : i64; accepted: an array of array<i64> with 15 numbers each}}
  "spconv.level_maps"(%coords, %places) {levels = [], maps = 27 : i64} : (!spconv.coords<32>, tensor<?xi32>) -> ()
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>, %places: tensor<?xi32>) {
  // expected-error @below {{'spconv.level_maps' there are no maps; accepted: at least one}}
  "spconv.level_maps"(%coords, %places) {levels = [], maps = []} : (!spconv.coords<32>, tensor<?xi32>) -> ()
  return
}

// -----

// Outputs of neighbouring voxels have gaps between them: marks of the next level would not follow from the given one.
func.func @f(%coords: !spconv.coords<32>, %places: tensor<?xi32>) {
  // expected-error @below {{accepted: strided, dilation 1, kernels not below strides}}
  "spconv.level_maps"(%coords, %places) {levels = [array<i64: 0, 1, 1, 1, 2, 2, 2, 0, 0, 0>], maps = [array<i64: 0, 0, 0, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1>]} : (!spconv.coords<32>, tensor<?xi32>) -> ()
  return
}
