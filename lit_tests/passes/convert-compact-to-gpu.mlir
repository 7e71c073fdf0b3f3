// RUN: %opt %s -p convert-map-to-gpu{target=gfx950},convert-compact-to-gpu{target=gfx950} | %filecheck %s

// Pairs are made by three launches without any number going to the host: the grids are bounded by rows alone.

// CHECK: [[TILES:#.+]] = affine_map<()[s0, s1, s2] -> ((s0 ceildiv 16) * 27)>
// CHECK-LABEL: func.func @pairs
// CHECK-SAME: message = "bytes of a column of the pair list"
func.func @pairs(%coords: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: [[IN:%.+]] = "spconv.alloc"() {name = "in_rows"
  // CHECK: [[OUT:%.+]] = "spconv.alloc"() {name = "out_rows"
  // CHECK: [[TAP:%.+]] = "spconv.alloc"() {name = "tile_tap", size = [[TILES]]}
  // CHECK: kernel = @kernels::@count_tiles_t27
  // CHECK: kernel = @kernels::@scan_totals_t27_m16
  // CHECK: kernel = @kernels::@write_pairs_t27_m16
  // CHECK: builtin.unrealized_conversion_cast [[IN]], [[OUT]], [[TAP]]
  // CHECK-NOT: "spconv.compact"
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// Counts are scanned inside a workgroup: shuffles in a wave, one word a wave in shared memory. No atomics.
// CHECK: gpu.func @count_tiles_t27
// CHECK-SAME: workgroup({{.*}} : memref<4xi32, #gpu.address_space<workgroup>>)
// CHECK-NOT: tile_atomic
// CHECK: gpu.shuffle up
// CHECK: gpu.barrier

// One workgroup: a wave per tap, then one wave over the taps.
// CHECK: gpu.func @scan_totals_t27_m16
// CHECK-SAME: known_block_size = array<i32: 1024, 1, 1>
// CHECK-NOT: tile_atomic
// CHECK: scf.for
// CHECK: scf.for

// The rank of a row in its tile is counted in the wave's ballot.
// CHECK: gpu.func @write_pairs_t27_m16
// CHECK-NOT: tile_atomic
// CHECK: gpu.ballot
// CHECK: math.ctpop
