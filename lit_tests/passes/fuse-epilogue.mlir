// RUN: %opt %s -p fuse-epilogue | %filecheck %s

// An epilogue moves into the gemm where the schedule finishes whole output rows.

// CHECK-LABEL: func.func @fused
func.func @fused(%pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>) -> tensor<?x32xbf16> {
  // CHECK: [[OUT:%.+]] = "spconv.gemm"(%arg0, %arg1, %arg2, %arg3)
  // CHECK-SAME: epilogue = #spconv.epilogue<"relu">, schedule = #spconv.schedule<"chunk_stationary", {chunk_rows = 256 : i64}>
  // CHECK-SAME: -> tensor<?x32xbf16>
  // CHECK-NOT: spconv.apply_epilogue
  // CHECK: return [[OUT]]
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"chunk_stationary", {chunk_rows = 256}>} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xbf16>
  return %out : tensor<?x32xbf16>
}

// Rows that several waves add to are complete only after the kernel.
// CHECK-LABEL: func.func @rows_are_shared
func.func @rows_are_shared(%pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>) -> tensor<?x32xbf16> {
  // CHECK: "spconv.gemm"
  // CHECK-SAME: epilogue = #spconv.epilogue<"none">
  // CHECK: "spconv.apply_epilogue"
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {}>} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xbf16>
  return %out : tensor<?x32xbf16>
}

// Somebody else needs the sum.
// CHECK-LABEL: func.func @two_uses
func.func @two_uses(%pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>) -> (tensor<?x32xf32>, tensor<?x32xbf16>) {
  // CHECK: [[SUM:%.+]] = "spconv.gemm"
  // CHECK-SAME: epilogue = #spconv.epilogue<"none">
  // CHECK: [[OUT:%.+]] = "spconv.apply_epilogue"([[SUM]])
  // CHECK: return [[SUM]], [[OUT]]
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"chunk_stationary", {}>} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xbf16>
  return %sum, %out : tensor<?x32xf32>, tensor<?x32xbf16>
}

// The gemm has an epilogue: a second one applies to what the first one rounded.
// CHECK-LABEL: func.func @already_fused
func.func @already_fused(%pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>) -> tensor<?x32xf32> {
  // CHECK: "spconv.gemm"
  // CHECK-SAME: epilogue = #spconv.epilogue<"relu">
  // CHECK: "spconv.apply_epilogue"
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"relu">, schedule = #spconv.schedule<"chunk_stationary", {}>} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"none">} : (tensor<?x32xf32>) -> tensor<?x32xf32>
  return %out : tensor<?x32xf32>
}

// No schedule has been chosen, or no gemm made the sum.
// CHECK-LABEL: func.func @unknown_owner
func.func @unknown_owner(%pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>) -> (tensor<?x32xf32>, tensor<?x32xf32>) {
  // CHECK: "spconv.gemm"
  // CHECK-COUNT-2: "spconv.apply_epilogue"
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xf32>
  %other = "spconv.apply_epilogue"(%init) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xf32>
  return %out, %other : tensor<?x32xf32>, tensor<?x32xf32>
}

// A residual goes along. A sum that was rounded before is not the gemm's own end.
// CHECK-LABEL: func.func @residual
func.func @residual(%pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>, %init: tensor<?x32xf32>, %r: tensor<?x32xbf16>) -> (tensor<?x32xbf16>, tensor<?x32xbf16>) {
  // CHECK: [[OUT:%.+]] = "spconv.gemm"(%arg0, %arg1, %arg2, %arg3, %arg4) {epilogue = #spconv.epilogue<"gelu">
  // CHECK-SAME: -> tensor<?x32xbf16>
  // CHECK: [[OTHER:%.+]] = "spconv.apply_epilogue"([[OUT]], %arg4)
  // CHECK: return [[OUT]], [[OTHER]]
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"chunk_stationary", {}>} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  %out = "spconv.apply_epilogue"(%sum, %r) {epilogue = #spconv.epilogue<"gelu">} : (tensor<?x32xf32>, tensor<?x32xbf16>) -> tensor<?x32xbf16>
  %other = "spconv.apply_epilogue"(%out, %r) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xbf16>, tensor<?x32xbf16>) -> tensor<?x32xbf16>
  return %out, %other : tensor<?x32xbf16>, tensor<?x32xbf16>
}
