// RUN: %opt %s -p check-level{level=spconv} --split-input-file --verify-diagnostics

// Level spconv: functions of convolutions, nothing of what they become.

func.func @allowed(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @stages(%map: !spconv.map<27>) {
  // expected-error @below {{spconv.compact is not allowed on the host side at level spconv}}
  // expected-note @below {{level spconv: functions of convolutions and pointwise ops on tensors; no kernels, no stages}}
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  return
}

// -----

// expected-error @below {{gpu.module is not allowed inside kernels at level spconv}}
// expected-note @below {{level spconv}}
gpu.module @kernels {
}

// -----

// The rule reaches into regions.
func.func @nested(%condition: i1) {
  // expected-error @below {{scf.if is not allowed on the host side at level spconv}}
  // expected-note @below {{level spconv}}
  scf.if %condition {
    func.call @nested(%condition) : (i1) -> ()
  }
  return
}
