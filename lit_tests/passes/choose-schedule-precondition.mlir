// RUN: %opt %s -p choose-schedule{target=gfx950} --split-input-file --verify-diagnostics

// The pass sets the schedule on the ops that feed a gemm too, so it needs to see them.

func.func @pairs(%pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>) {
  // expected-error @below {{the pairs are not made in this function}}
  // expected-note @below {{supported: compact of map}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @map(%map: !spconv.map<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>) {
  %pairs = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  // expected-error @below {{the pairs are not made in this function}}
  // expected-note @below {{supported: compact of map}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @weight(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>) {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  %pairs = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  // expected-error @below {{the weight is not packed in this function}}
  // expected-note @below {{supported: the result of pack_weight}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

// Rows may come from anywhere: only their number counts.
func.func @init(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xbf16>, %init: tensor<?x32xf32>) {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  %pairs = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x3x3x3x16xbf16>) -> !spconv.packed<bf16>
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}
