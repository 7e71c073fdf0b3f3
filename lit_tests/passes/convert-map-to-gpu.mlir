// RUN: %opt %s -p convert-map-to-gpu{target=gfx950} --split-input-file | %filecheck %s

// A map becomes three launches: fill the grid, scatter the rows, look the neighbours up. The first also clears what the
// pairs are counted in, the last counts them.

// What 32-bit offsets must reach is demanded of the caller.
// CHECK-LABEL: func.func @cube
// CHECK-SAME: message = "bytes of coordinates"
// CHECK-SAME: message = "bytes of the kernel map"
// CHECK-SAME: message = "bytes of the dense grid, with 32-bit keys"
func.func @cube(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // CHECK: [[COORDS:%.+]] = builtin.unrealized_conversion_cast %arg0
  // CHECK: [[GRID:%.+]] = "spconv.alloc"() {name = "grid"
  // CHECK: [[TABLE:%.+]] = "spconv.alloc"() {name = "table"
  // CHECK: [[COUNT:%.+]] = "spconv.alloc"() {name = "tap_count"
  // CHECK: [[STATE:%.+]] = "spconv.alloc"() {name = "pair_state"
  // CHECK: "spconv.symbol"() {name = "cells"} : () -> i32
  // CHECK: "spconv.launch"
  // CHECK-SAME: block = 256 : i64
  // CHECK-SAME: group = "pairs", kernel = @kernels::@fill_grid_k32_t27_b256
  // CHECK: "spconv.launch"
  // CHECK-SAME: kernel = @kernels::@scatter_rows_k32_h1x1x1_b256
  // CHECK: "spconv.launch"
  // CHECK-SAME: kernel = @kernels::@lookup_k32_3x3x3_d1x1x1_b256
  // CHECK: builtin.unrealized_conversion_cast [[TABLE]], [[COUNT]], [[STATE]] : {{.*}} to !spconv.map<27 : i64>
  // CHECK-NOT: "spconv.map"
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}

// A row outside the box writes nothing: the atomic stands inside the second condition.
// CHECK: gpu.func @scatter_rows
// CHECK-SAME: known_block_size = array<i32: 256, 1, 1>
// CHECK: scf.if
// CHECK: "spconv.tile_load"
// CHECK-SAME: vector<4xi32>
// CHECK: scf.if
// CHECK-NEXT: "spconv.tile_atomic"
// CHECK-SAME: kind = "umin"

// A lane looks up a plane of nine taps; the plane is the grid's second axis.
// CHECK: gpu.func @lookup
// CHECK: gpu.block_id y
// CHECK: scf.if {{.*}} -> (i32, i32, i32, i32, i32, i32, i32, i32, i32)
// CHECK: gpu.ballot
// CHECK: gpu.barrier
// CHECK: "spconv.tile_atomic"{{.*}} {kind = "add"}

// -----

// 64-bit keys index a grid of any size, so they demand nothing of it.
// CHECK-LABEL: func.func @wide
// CHECK-NOT: dense grid
func.func @wide(%coords: !spconv.coords<64>) -> !spconv.map<9> {
  // CHECK: "spconv.symbol"() {name = "min_z"} : () -> i64
  // CHECK: "spconv.symbol"() {name = "cells"} : () -> i64
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 1, 3, 3>, dilation = array<i64: 1, 2, 3>, schedule = #spconv.schedule<"dense_grid", {block = 128}>} : (!spconv.coords<64>) -> !spconv.map<9>
  return %0 : !spconv.map<9>
}
// CHECK: gpu.func @fill_grid_k64_t9_b128
// CHECK: gpu.func @scatter_rows_k64_h0x2x3_b128
// CHECK: arith.extsi
// CHECK: "spconv.tile_atomic"
// CHECK-SAME: (i32, !spconv.buffer<i32>, i64)

// -----

// Two maps of one geometry share their kernels.
// CHECK-LABEL: func.func @twice
func.func @twice(%a: !spconv.coords<32>, %b: !spconv.coords<32>) -> (!spconv.map<27>, !spconv.map<27>) {
  %0 = "spconv.map"(%a) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  %1 = "spconv.map"(%b) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0, %1 : !spconv.map<27>, !spconv.map<27>
}
// CHECK: gpu.func @lookup
// CHECK-NOT: gpu.func @lookup

// -----

// By search: clear, keys with the counts of their digits, a pass for each digit that the box reaches, the search.
// CHECK: [[TWO:#.+]] = affine_map<()[s0, s1, s2] -> (s0 ceildiv 1024, (s1 floordiv 256) * 268435456)>
// CHECK: [[FOUR:#.+]] = affine_map<()[s0, s1, s2] -> (s0 ceildiv 1024, (s1 floordiv 16777216) * 268435456)>
// CHECK-LABEL: func.func @search
// CHECK-SAME: message = "bytes of sorted keys"
// CHECK-SAME: message = "cells of the box, with 32-bit keys"
// CHECK-NOT: dense grid
func.func @search(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // CHECK: [[RECORDS:%.+]] = "spconv.alloc"() {name = "records"
  // CHECK: kernel = @kernels::@clear_sort_k32_i4_t27_b256
  // CHECK: kernel = @kernels::@make_records_k32_h1x1x1_i4
  // CHECK: kernel = @kernels::@sort_digit_k32_i4
  // CHECK: grid = {{\[}}[[TWO]]], {{.*}}@sort_digit_k32_i4
  // CHECK: kernel = @kernels::@sort_digit_k32_i4
  // CHECK: grid = {{\[}}[[FOUR]]], {{.*}}@sort_digit_k32_i4
  // CHECK-NOT: @sort_digit
  // CHECK: kernel = @kernels::@search_k32_3x3x3_d1x1x1_b256
  // CHECK: kernel = @kernels::@turn_over_t27_i4
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"z_delta", {block = 256, items = 4}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}

// A pass does nothing unless keys are out of order; its number comes from the ticket.
// CHECK: gpu.func @sort_digit_k32_i4
// CHECK: scf.if
// CHECK: "spconv.tile_fetch_add"
// CHECK: gpu.barrier
// CHECK: arith.divui
// CHECK-COUNT-8: gpu.ballot
// CHECK-NOT: memref.atomic_rmw
// CHECK: "spconv.tile_store_device"
// CHECK: scf.while
// CHECK: "spconv.tile_load_device"
// CHECK: "spconv.tile_store_device"
