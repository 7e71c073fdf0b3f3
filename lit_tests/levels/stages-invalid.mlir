// RUN: %opt %s -p check-level{level=stages} --split-input-file --verify-diagnostics

// Level stages: no convolution is left, and no launch is there yet.

func.func @allowed(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x1x1x1x16xf32>) -> tensor<?x32xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<1>
  %pairs = "spconv.compact"(%map) : (!spconv.map<1>) -> !spconv.pairs<1>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x1x1x1x16xf32>) -> !spconv.packed<f32>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x32xf32>
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<1>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x32xf32>
  %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xf32>
  return %out : tensor<?x32xf32>
}

// -----

func.func @convolution(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) {
  // expected-error @below {{spconv.subm_conv3d is not allowed on the host side at level stages}}
  // expected-note @below {{level stages: functions of maps, compact, pack_weight, fill, gemm, pool and work on rows; no convolutions}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @launch() {
  // expected-error @below {{spconv.launch is not allowed on the host side at level stages}}
  // expected-note @below {{level stages}}
  "spconv.launch"() {kernel = @kernels::@f, grid = []} : () -> ()
  return
}

// -----

module {
  // expected-error @below {{builtin.module is not allowed inside kernels at level stages}}
  // expected-note @below {{level stages}}
  module @kernels {
  }
}
