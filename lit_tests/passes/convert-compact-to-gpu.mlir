// RUN: %opt %s -p convert-map-to-gpu{target=gfx950},convert-compact-to-gpu{target=gfx950} --split-input-file | %filecheck %s

// Pairs are made by one launch without any number going to the host: its grid is bounded by rows alone.

// CHECK: [[TILES:#.+]] = affine_map<()[s0, s1, s2] -> ((s0 ceildiv 16) * 27)>
// CHECK-LABEL: func.func @pairs
// CHECK-SAME: message = "bytes of a column of the pair list"
func.func @pairs(%coords: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: [[IN:%.+]] = "spconv.alloc"() {name = "in_rows"
  // CHECK: [[OUT:%.+]] = "spconv.alloc"() {name = "out_rows"
  // CHECK: [[TAP:%.+]] = "spconv.alloc"() {name = "tile_tap", size = [[TILES]]}
  // CHECK: kernel = @kernels::@compact_pairs_t27_m16
  // CHECK: builtin.unrealized_conversion_cast [[IN]], [[OUT]], [[TAP]]
  // CHECK-NOT: "spconv.compact"
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// Rows are ranked by ballots, chunks by look-back; nothing but the ticket is added to by all workgroups.
// CHECK: gpu.func @compact_pairs_t27_m16
// CHECK-SAME: known_block_size = array<i32: 256, 1, 1>
// CHECK-NOT: tile_atomic
// CHECK: "spconv.tile_fetch_add"
// CHECK: gpu.barrier
// CHECK-COUNT-16: gpu.ballot
// CHECK: "spconv.tile_store_device"
// CHECK: scf.while
// CHECK: "spconv.tile_load_device"
// CHECK: gpu.barrier
// CHECK: math.ctpop

// -----

// Pairs for two tile sizes: the second compaction clears a state of its own.
// CHECK-LABEL: func.func @twice
func.func @twice(%coords: !spconv.coords<32>) -> (!spconv.pairs<27>, !spconv.pairs<27>) {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK-NOT: clear_pairs
  // CHECK: kernel = @kernels::@compact_pairs_t27_m16
  // CHECK: "spconv.alloc"() {name = "pair_state"
  // CHECK: kernel = @kernels::@clear_pairs_t27
  // CHECK: kernel = @kernels::@compact_pairs_t27_m64
  %0 = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  %1 = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 64}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return %0, %1 : !spconv.pairs<27>, !spconv.pairs<27>
}
