// RUN: %opt %s | %opt --generic | %opt | %filecheck %s

// Every op of the host plan survives printing and parsing.

// Maps are printed once, on top.
// CHECK-DAG: [[CELLS:#.+]] = affine_map<()[s0, s1, s2] -> (s1)>
// CHECK-DAG: [[TAPS:#.+]] = affine_map<()[s0, s1, s2] -> (s0 * 27)>
// CHECK-DAG: [[BLOCKS:#.+]] = affine_map<()[s0, s1, s2] -> (s0 ceildiv 256)>
// CHECK-DAG: [[ONE:#.+]] = affine_map<()[s0, s1, s2] -> (27)>
// CHECK-LABEL: func.func @plan
func.func @plan(%coords: !spconv.buffer<i32>) {
  // CHECK: "spconv.symbol"() {name = "rows"} : () -> i32
  %rows = "spconv.symbol"() {name = "rows"} : () -> i32
  // CHECK: "spconv.symbol"() {name = "extent_z"} : () -> i64
  %extent = "spconv.symbol"() {name = "extent_z"} : () -> i64
  // CHECK: "spconv.alloc"() {name = "grid", size = [[CELLS]]} : () -> !spconv.buffer<i32>
  %grid = "spconv.alloc"() {name = "grid", size = affine_map<()[rows, cells, threads] -> (cells)>} : () -> !spconv.buffer<i32>
  // CHECK: "spconv.alloc"() {grows, name = "pairs", size = [[TAPS]]} : () -> !spconv.buffer<i64>
  %pairs = "spconv.alloc"() {name = "pairs", size = affine_map<()[rows, cells, threads] -> (rows * 27)>, grows} : () -> !spconv.buffer<i64>
  // CHECK: "spconv.argument"(%{{.*}}) : (!spconv.buffer<i32>) -> !spconv.argument
  %0 = "spconv.argument"(%coords) : (!spconv.buffer<i32>) -> !spconv.argument
  // CHECK: "spconv.argument"(%{{.*}}) : (i32) -> !spconv.argument
  %1 = "spconv.argument"(%rows) : (i32) -> !spconv.argument
  // CHECK: "spconv.argument"(%{{.*}}) : (i64) -> !spconv.argument
  %2 = "spconv.argument"(%extent) : (i64) -> !spconv.argument
  // CHECK: "spconv.launch"(%{{.*}}, %{{.*}}, %{{.*}}) {block = 256 : i64, grid = {{\[}}[[BLOCKS]], [[ONE]]], group = "pairs", kernel = @kernels::@map}
  "spconv.launch"(%0, %1, %2) {kernel = @kernels::@map, grid = [affine_map<()[rows, cells, threads] -> (rows ceildiv 256)>, affine_map<()[rows, cells, threads] -> (27)>], block = 256, group = "pairs"} : (!spconv.argument, !spconv.argument, !spconv.argument) -> ()
  // A function of the CPU has no grid, and may take nothing.
  // CHECK: "spconv.launch"() {grid = [], kernel = @compact} : () -> ()
  "spconv.launch"() {kernel = @compact, grid = []} : () -> ()
  return
}
