// RUN: %opt %s | %opt --generic | %opt | %filecheck %s

// The stages between two coordinate sets, with and without a schedule.

// CHECK-LABEL: func.func @stages
func.func @stages(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x16xf32>) -> tensor<?x16xf32> {
  // CHECK: [[MAP:%.+]] = "spconv.cross_map"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) {dilation = array<i64: 1, 1, 1>, kernel_size = array<i64: 3, 1, 1>, padding = array<i64: 0, 0, 0>, stride = array<i64: 2, 1, 1>}
  // CHECK-SAME: -> !spconv.cross_map<3 : i64>
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 1, 1>, stride = array<i64: 2, 1, 1>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<3>
  // CHECK: [[PAIRS:%.+]] = "spconv.cross_compact"([[MAP]]) {schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512 : i64}>, transposed = false}
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512 : i64}>} : (!spconv.cross_map<3>) -> !spconv.pairs<3>
  // CHECK: "spconv.cross_compact"([[MAP]]) {transposed = true}
  %back = "spconv.cross_compact"(%map) {transposed = true} : (!spconv.cross_map<3>) -> !spconv.pairs<3>
  // CHECK: "spconv.pool"([[PAIRS]], %{{[a-z0-9]+}}) {mode = "max"}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max"} : (!spconv.pairs<3>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
