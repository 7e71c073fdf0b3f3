// RUN: %opt %s -p convert-output-coords-to-gpu{target=gfx950} --split-input-file | %filecheck %s

// Three launches: clear the marks, mark what every input reaches, read the marks off. How many inputs there are is an
// argument on the device, how many outputs there are a buffer there.

// CHECK-LABEL: func.func @strided
// CHECK-SAME: %arg1: !spconv.buffer<i32> {spconv.name = "coords_count"}
// CHECK-SAME: message = "bytes of coordinates"
// CHECK-SAME: message = "bytes of the outputs' coordinates"
func.func @strided(%coords: !spconv.coords<32> {spconv.name = "coords"}) -> !spconv.coords<32> {
  // CHECK: [[COORDS:%.+]] = builtin.unrealized_conversion_cast %arg0
  // CHECK: [[MARKS:%.+]] = "spconv.alloc"() {name = "marks"
  // CHECK: [[ROWS:%.+]] = "spconv.alloc"() {name = "out_coords"
  // CHECK: [[COUNT:%.+]] = "spconv.alloc"() {name = "out_coords_count"
  // CHECK: group = "coords", kernel = @kernels::@clear_marks_k32_b256}
  // CHECK: group = "coords", kernel = @kernels::@mark_outputs_k32_b256_3x3x3_s2x2x2_p1x1x1_d1x1x1}
  // CHECK: group = "coords", kernel = @kernels::@read_marks_k32_b256}
  // CHECK: builtin.unrealized_conversion_cast [[ROWS]], [[COUNT]] : {{.+}} to !spconv.coords<32 : i64>
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"marked_cells", {block = 256 : i64}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// An input of a strided convolution reaches two outputs along an axis: two along x, the others along the grid.
// CHECK: gpu.func @mark_outputs
// CHECK: gpu.block_id y
// CHECK-COUNT-2: "spconv.tile_atomic"({{.+}}) {kind = "or"}
// CHECK-NOT: "spconv.tile_atomic"
// CHECK: gpu.func @read_marks
// CHECK: "spconv.tile_fetch_add"
// CHECK: math.cttz

// -----

// Outputs of a transposed convolution are the fine set; 64-bit keys address any number of cells.
// CHECK-LABEL: func.func @transposed
func.func @transposed(%coords: !spconv.coords<64> {spconv.name = "coords"}) -> !spconv.coords<64> {
  // CHECK: "spconv.symbol"() {name = "cells"} : () -> i64
  // CHECK: "spconv.symbol"() {name = "rows"} : () -> i32
  // CHECK: kernel = @kernels::@mark_outputs_k64_b256_3x3x3_s2x2x2_p1x1x1_d1x1x1_transposed}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = true, schedule = #spconv.schedule<"marked_cells", {block = 256 : i64}>} : (!spconv.coords<64>) -> !spconv.coords<64>
  return %0 : !spconv.coords<64>
}

// -----

// By a sort of eight candidates of each input, as many passes as keys reach; the state, the scan of what is unique and
// the rows are cleared together.
// CHECK: [[LAST:#.+]] = affine_map<()[s0, s1, s2] -> ((s0 * 8) ceildiv 1024, (s1 floordiv 72057594037927936) * 268435456)>
// CHECK-LABEL: func.func @sorted
// CHECK-SAME: message = "bytes of candidates' keys"
// CHECK-SAME: message = "bytes of the sort's state"
// CHECK-NOT: with 32-bit keys
func.func @sorted(%coords: !spconv.coords<64> {spconv.name = "coords"}) -> !spconv.coords<64> {
  // CHECK: [[ROWS:%.+]] = "spconv.alloc"() {name = "out_coords"
  // CHECK: [[COUNT:%.+]] = "spconv.alloc"() {name = "out_coords_count"
  // CHECK: kernel = @kernels::@clear_candidates_k64_c8_i4_b256}
  // CHECK: kernel = @kernels::@candidate_records_k64_i4_3x3x3_s2x2x2_p1x1x1_d1x1x1}
  // CHECK-COUNT-7: kernel = @kernels::@sort_candidates_k64_c8_i4}
  // CHECK: grid = {{.}}[[LAST]]{{.}}, group = "coords", kernel = @kernels::@sort_candidates_k64_c8_i4}
  // CHECK: kernel = @kernels::@unique_outputs_k64_c8_b256}
  // CHECK: builtin.unrealized_conversion_cast [[ROWS]], [[COUNT]] : {{.+}} to !spconv.coords<64 : i64>
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"sorted_candidates", {block = 256 : i64, items = 4 : i64}>} : (!spconv.coords<64>) -> !spconv.coords<64>
  return %0 : !spconv.coords<64>
}

// -----

// Outputs of a transposed op have a candidate for every tap.
// CHECK-LABEL: func.func @sorted_transposed
// CHECK-SAME: message = "cells of the box of outputs, with 32-bit keys"
func.func @sorted_transposed(%coords: !spconv.coords<32> {spconv.name = "coords"}) -> !spconv.coords<32> {
  // CHECK: kernel = @kernels::@candidate_records_k32_i4_3x3x3_s2x2x2_p1x1x1_d1x1x1_transposed}
  // CHECK-COUNT-4: kernel = @kernels::@sort_candidates_k32_c27_i4}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = true, schedule = #spconv.schedule<"sorted_candidates", {block = 256 : i64, items = 4 : i64}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}
