// RUN: %opt %s | %opt --generic | %opt | %filecheck %s

// Every op of level stages survives printing and parsing, with its optional parts and without.

// CHECK-LABEL: func.func @without_options
func.func @without_options(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // CHECK: "spconv.map"(%{{.*}}) {dilation = array<i64: 1, 1, 1>, kernel_size = array<i64: 3, 3, 3>} : (!spconv.coords<32 : i64>) -> !spconv.map<27 : i64>
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: "spconv.compact"(%{{.*}}) : (!spconv.map<27 : i64>) -> !spconv.pairs<27 : i64>
  %pairs = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  // CHECK: "spconv.pack_weight"(%{{.*}}) : (tensor<32x3x3x3x16xf32>) -> !spconv.packed<f32>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x3x3x3x16xf32>) -> !spconv.packed<f32>
  // CHECK: "spconv.fill"(%{{.*}}) : (!spconv.coords<32 : i64>) -> tensor<?x32xf32>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x32xf32>
  // CHECK: "spconv.gemm"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {epilogue = #spconv.epilogue<"none">}
  // CHECK-SAME: (!spconv.pairs<27 : i64>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x32xf32>
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return %sum : tensor<?x32xf32>
}

// CHECK-LABEL: func.func @with_options
func.func @with_options(%coords: !spconv.coords<64>, %features: tensor<?x16xbf16>, %weight: tensor<32x1x3x3x16xbf16>, %bias: tensor<32xf32>) -> tensor<?x32xbf16> {
  // CHECK: "spconv.map"
  // CHECK-SAME: schedule = #spconv.schedule<"dense_grid", {block = 256 : i64}>
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 3, 3>, dilation = array<i64: 1, 2, 3>, schedule = #spconv.schedule<"dense_grid", {block = 256 : i64}>} : (!spconv.coords<64>) -> !spconv.map<9>
  // CHECK: "spconv.compact"
  // CHECK-SAME: schedule = #spconv.schedule<"tap_tile_row", {}>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {}>} : (!spconv.map<9>) -> !spconv.pairs<9>
  // CHECK: "spconv.pack_weight"
  // CHECK-SAME: schedule = #spconv.schedule<"mma_panels", {tile_k = 32 : i64, tile_n = 16 : i64}>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 16, tile_k = 32}>} : (tensor<32x1x3x3x16xbf16>) -> !spconv.packed<bf16>
  // CHECK: "spconv.fill"(%{{.*}}, %{{.*}}) {schedule
  %init = "spconv.fill"(%coords, %bias) {schedule = #spconv.schedule<"pairs_m16", {}>} : (!spconv.coords<64>, tensor<32xf32>) -> tensor<?x32xf32>
  // CHECK: "spconv.gemm"
  // CHECK-SAME: epilogue = #spconv.epilogue<"relu">, schedule = #spconv.schedule<"pairs_m16", {}>
  // CHECK-SAME: -> tensor<?x32xf16>
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"relu">, schedule = #spconv.schedule<"pairs_m16", {}>} : (!spconv.pairs<9>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf16>
  // CHECK: "spconv.apply_epilogue"(%{{.*}}) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {}>} : (tensor<?x32xf16>) -> tensor<?x32xbf16>
  %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {}>} : (tensor<?x32xf16>) -> tensor<?x32xbf16>
  return %out : tensor<?x32xbf16>
}
