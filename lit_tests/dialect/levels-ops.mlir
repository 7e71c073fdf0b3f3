// RUN: %opt %s | %opt --generic | %opt | %filecheck %s

// Levels and maps that are built together; without made levels there are maps of the given one.

// CHECK-LABEL: func.func @levels
func.func @levels(%coords: !spconv.coords<32>, %places: tensor<?xi32>) {
  // CHECK: "spconv.level_maps"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) {levels = [array<i64: 0, 3, 3, 3, 2, 2, 2, 1, 1, 1>], maps = [array<i64: 0, 1, 0, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1>, array<i64: 1, 0, 1, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1>]}
  "spconv.level_maps"(%coords, %places) {levels = [array<i64: 0, 3, 3, 3, 2, 2, 2, 1, 1, 1>], maps = [array<i64: 0, 1, 0, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1>, array<i64: 1, 0, 1, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1>]} : (!spconv.coords<32>, tensor<?xi32>) -> ()
  // CHECK: "spconv.level_maps"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) {levels = [], maps = [array<i64: 0, 0, 0, 5, 1, 3, 1, 1, 1, 2, 0, 1, 1, 1, 1>]}
  "spconv.level_maps"(%coords, %places) {levels = [], maps = [array<i64: 0, 0, 0, 5, 1, 3, 1, 1, 1, 2, 0, 1, 1, 1, 1>]} : (!spconv.coords<32>, tensor<?xi32>) -> ()
  return
}
