// RUN: %opt %s -p cse | %filecheck %s

// The ops of level stages are pure, so upstream cse shares equal maps: two layers over one coordinate set build
// one map and one list of pairs.

// CHECK-LABEL: func.func @equal
func.func @equal(%coords: !spconv.coords<32>) -> (!spconv.pairs<27>, !spconv.pairs<27>) {
  // CHECK-COUNT-1: "spconv.map"
  // CHECK-NOT: "spconv.map"
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  %1 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: [[PAIRS:%.+]] = "spconv.compact"
  // CHECK-NOT: "spconv.compact"
  %2 = "spconv.compact"(%0) : (!spconv.map<27>) -> !spconv.pairs<27>
  %3 = "spconv.compact"(%1) : (!spconv.map<27>) -> !spconv.pairs<27>
  // CHECK: return [[PAIRS]], [[PAIRS]]
  return %2, %3 : !spconv.pairs<27>, !spconv.pairs<27>
}

// CHECK-LABEL: func.func @other_dilation
func.func @other_dilation(%coords: !spconv.coords<32>) -> (!spconv.map<27>, !spconv.map<27>) {
  // CHECK: [[NEAR:%.+]] = "spconv.map"
  // CHECK-SAME: dilation = array<i64: 1, 1, 1>
  // CHECK: [[FAR:%.+]] = "spconv.map"
  // CHECK-SAME: dilation = array<i64: 1, 1, 2>
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  %1 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 2>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: return [[NEAR]], [[FAR]]
  return %0, %1 : !spconv.map<27>, !spconv.map<27>
}

// The same number of taps along another axis.
// CHECK-LABEL: func.func @other_kernel
func.func @other_kernel(%coords: !spconv.coords<32>) -> (!spconv.map<3>, !spconv.map<3>) {
  // CHECK: [[ALONG_Z:%.+]] = "spconv.map"
  // CHECK-SAME: kernel_size = array<i64: 3, 1, 1>
  // CHECK: [[ALONG_X:%.+]] = "spconv.map"
  // CHECK-SAME: kernel_size = array<i64: 1, 1, 3>
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<3>
  %1 = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<3>
  // CHECK: return [[ALONG_Z]], [[ALONG_X]]
  return %0, %1 : !spconv.map<3>, !spconv.map<3>
}

// CHECK-LABEL: func.func @other_coords
func.func @other_coords(%a: !spconv.coords<32>, %b: !spconv.coords<32>) -> (!spconv.map<1>, !spconv.map<1>) {
  // CHECK-COUNT-2: "spconv.map"
  %0 = "spconv.map"(%a) {kernel_size = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<1>
  %1 = "spconv.map"(%b) {kernel_size = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<1>
  return %0, %1 : !spconv.map<1>, !spconv.map<1>
}

// Equal allocations are two buffers: they are written to.
// CHECK-LABEL: func.func @allocations
func.func @allocations() -> (!spconv.buffer<i32>, !spconv.buffer<i32>) {
  // CHECK-COUNT-2: "spconv.alloc"
  %0 = "spconv.alloc"() {name = "grid", size = affine_map<()[rows, cells, threads] -> (cells)>} : () -> !spconv.buffer<i32>
  %1 = "spconv.alloc"() {name = "grid", size = affine_map<()[rows, cells, threads] -> (cells)>} : () -> !spconv.buffer<i32>
  return %0, %1 : !spconv.buffer<i32>, !spconv.buffer<i32>
}

// A result that nobody uses is gone; a launch and an atomic stay.
// CHECK-LABEL: func.func @unused
func.func @unused(%coords: !spconv.coords<32>, %buffer: !spconv.buffer<i32>, %i: i32) {
  // CHECK-NOT: "spconv.map"
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<1>
  // CHECK: "spconv.launch"
  "spconv.launch"() {kernel = @kernels::@f, grid = []} : () -> ()
  // CHECK: "spconv.tile_atomic"
  "spconv.tile_atomic"(%i, %buffer, %i) {kind = "add"} : (i32, !spconv.buffer<i32>, i32) -> ()
  return
}
