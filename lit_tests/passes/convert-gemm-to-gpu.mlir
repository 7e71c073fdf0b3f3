// RUN: %opt %s -p convert-map-to-gpu,convert-compact-to-gpu,convert-weight-to-gpu,convert-gemm-to-gpu,convert-rows-to-gpu,canonicalize,cse --split-input-file | %filecheck %s

// A gemm fills the rows it adds into, then adds. Its grid holds as many waves as there can be tiles, at most 4096.

// CHECK: [[WAVES:#.+]] = affine_map<()[s0, s1, s2] -> ((s0 ceildiv 16) * 9, 4096)>
// CHECK-LABEL: func.func @two_slices
// CHECK-SAME: message = "bytes of features of 96 channels"
func.func @two_slices(%coords: !spconv.coords<32>, %features: tensor<?x96xbf16>, %weight: tensor<112x1x3x3x96xbf16>) -> tensor<?x112xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<9>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<9>) -> !spconv.pairs<9>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 64, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<112x1x3x3x96xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x112xf32>
  // CHECK: [[SUMS:%.+]] = "spconv.alloc"() {name = "sums"
  // CHECK: kernel = @kernels::@fill_rows_112
  // CHECK: "spconv.launch"
  // CHECK-SAME: block = 64 : i64, grid = [[[WAVES]], {{#.+}}], group = "output"
  // CHECK-SAME: kernel = @kernels::@gemm_pairs_m16_bf16_t9_96x112_n64x16_k32x8_u1_w4096
  // CHECK: builtin.unrealized_conversion_cast [[SUMS]]
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 64, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 4096}>} : (!spconv.pairs<9>, tensor<?x96xbf16>, !spconv.packed<bf16>, tensor<?x112xf32>) -> tensor<?x112xf32>
  return %sum : tensor<?x112xf32>
}

// The number of tiles is read from memory. Per step one run of 16 bytes of features and one of each panel, then the
// matrix instructions; no workgroup memory.
// CHECK: gpu.func @gemm_pairs_m16
// CHECK-NOT: memref
// CHECK: [[TILES:%.+]] = "spconv.tile_load"(%arg5
// CHECK: scf.for {{.+}} to [[TILES]] step %c4096_i32
// CHECK: scf.for {{.+}} -> (vector<4xf32>, vector<4xf32>, vector<4xf32>, vector<4xf32>)
// CHECK-COUNT-5: -> vector<8xbf16>
// CHECK-COUNT-4: "spconv.tile_mma"
// CHECK: loop_annotation = #loop_annotation

// Padding is branched around, and so are columns beyond the 112th, which only the last panel of a slice can have.
// CHECK: [[REAL:%.+]] = arith.cmpi sge
// CHECK: scf.if [[REAL]]
// CHECK-COUNT-3: kind = "fadd"
// CHECK: [[COLUMN:%.+]] = arith.cmpi slt
// CHECK: scf.if [[COLUMN]]
// CHECK: kind = "fadd"

// -----

// Two steps of loads before any matrix instruction; an odd step is left over for after the loop. Two gemms with one
// fill get rows of their own.
// CHECK-LABEL: func.func @unrolled
func.func @unrolled(%coords: !spconv.coords<32>, %features: tensor<?x160xbf16>, %weight: tensor<16x1x1x3x160xbf16>) -> (tensor<?x16xf32>, tensor<?x16xf32>) {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<16x1x1x3x160xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  // CHECK-COUNT-2: kernel = @kernels::@fill_rows_16
  // CHECK-NOT: @fill_rows_16}
  // CHECK: return
  %a = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 2, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x160xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  %b = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 2, waves = 8192}>} : (!spconv.pairs<3>, tensor<?x160xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %a, %b : tensor<?x16xf32>, tensor<?x16xf32>
}
// CHECK: gpu.func @gemm_pairs_m16
// CHECK: scf.for
// CHECK: scf.for
// CHECK-COUNT-4: -> vector<8xbf16>
// CHECK-COUNT-2: "spconv.tile_mma"
// CHECK: scf.yield
// CHECK-COUNT-2: -> vector<8xbf16>
// CHECK-COUNT-1: "spconv.tile_mma"
// CHECK: gpu.return

// -----

// Two layers in one function: the epilogue of the first is lowered before the gemm that reads its rows.
// CHECK-LABEL: func.func @chain
func.func @chain(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<16x1x1x3x16xbf16>) -> tensor<?x16xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<3>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>} : (!spconv.map<3>) -> !spconv.pairs<3>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<16x1x1x3x16xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  // CHECK: kernel = @kernels::@gemm_pairs_m16_bf16_t3_16x16
  // CHECK: [[ROWS:%.+]] = "spconv.alloc"() {name = "out"
  // CHECK: [[READ:%.+]] = "spconv.argument"([[ROWS]])
  // CHECK: kernel = @kernels::@apply_relu_bf16_16}
  // CHECK: "spconv.launch"([[READ]],
  // CHECK-SAME: kernel = @kernels::@gemm_pairs_m16_bf16_t3_16x16
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 4096}>} : (!spconv.pairs<3>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  %rows = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x16xf32>) -> tensor<?x16xbf16>
  %again = "spconv.gemm"(%pairs, %rows, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8, k_unroll = 1, waves = 4096}>} : (!spconv.pairs<3>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %again : tensor<?x16xf32>
}
