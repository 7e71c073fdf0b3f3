// RUN: %opt %s -p convert-map-to-gpu,convert-compact-to-gpu,convert-weight-to-gpu,convert-gemm-to-gpu,convert-rows-to-gpu,canonicalize,cse --split-input-file | %filecheck %s

// A gemm over tiles of 256 pairs fills the rows that it adds into. Its workgroups are those that the chip holds, or none.

// CHECK: [[GROUPS:#.+]] = affine_map<()[s0, s1, s2] -> ((s0 ceildiv 256) * 2304, 256)>
// CHECK-LABEL: func.func @tiles
// CHECK-SAME: message = "bytes of features of 128 channels"
func.func @tiles(%coords: !spconv.coords<32>, %features: tensor<?x128xbf16>, %weight: tensor<112x1x3x3x128xbf16>, %bias: tensor<112xf32>) -> tensor<?x112xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<9>
  // CHECK: kernel = @kernels::@compact_pairs_t9_m256
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 256}>} : (!spconv.map<9>) -> !spconv.pairs<9>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 112, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<112x1x3x3x128xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords, %bias) : (!spconv.coords<32>, tensor<112xf32>) -> tensor<?x112xf32>
  // CHECK: [[SUMS:%.+]] = "spconv.alloc"() {name = "sums"
  // CHECK: kernel = @kernels::@fill_rows_112_bias
  // CHECK: block = 512 : i64, grid = {{.}}[[GROUPS]]{{.}}, group = "output"
  // CHECK-SAME: kernel = @kernels::@gemm_pair_major_bf16_t9_128x112_n112x16_k32x8_s64_w8x1x2_g256
  // CHECK: builtin.unrealized_conversion_cast [[SUMS]]
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pair_major", {tile_m = 256, waves = 8, across = 1, fragments = 2, tile_n = 112, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 64, per_chiplet = 32}>} : (!spconv.pairs<9>, tensor<?x128xbf16>, !spconv.packed<bf16>, tensor<?x112xf32>) -> tensor<?x112xf32>
  return %sum : tensor<?x112xf32>
}

// The number of tiles is read from memory. Two stages of K are a tile: two waits, two barriers and two copies ahead in the
// loop, no branch around products; then three pairs of panels and the seventh, for two fragments.
// CHECK: gpu.func @gemm_pair_major
// CHECK: [[TILES:%.+]] = "spconv.tile_load"(%arg5
// CHECK: scf.for
// CHECK-COUNT-2: "spconv.tile_copy_wait"() {newest = 1 : i64}
// CHECK-NOT: "spconv.tile_copy_wait"
// CHECK-COUNT-6: gpu.shuffle xor
// CHECK: [[REAL:%.+]] = arith.cmpi sge
// CHECK: scf.if [[REAL]]
// CHECK-COUNT-3: kind = "fadd"
// CHECK-NOT: kind = "fadd"
// CHECK: scf.if
// CHECK: scf.yield
// CHECK: gpu.return
