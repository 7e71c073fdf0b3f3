// RUN: %opt %s -p convert-level-maps-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-level-maps-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @two(%coords: !spconv.coords<32>, %places: tensor<?xi32>) {
  "spconv.level_maps"(%coords, %places) {levels = [], maps = [array<i64: 0, 0, 0, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1>]} : (!spconv.coords<32>, tensor<?xi32>) -> ()
  // expected-error @below {{a second op that builds levels}}
  // expected-note @below {{supported: one in a function}}
  "spconv.level_maps"(%coords, %places) {levels = [], maps = [array<i64: 0, 0, 0, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1>]} : (!spconv.coords<32>, tensor<?xi32>) -> ()
  return
}
