// RUN: %opt %s -p check-level{level=spconv} | %filecheck %s
// RUN: %opt %s -p check-level | %filecheck %s
// RUN: not %opt %s -p check-level{level=stages} 2>&1 | %filecheck %s --check-prefix=STAGES
// RUN: not %opt %s -p check-level{level=asm} 2>&1 | %filecheck %s --check-prefix=UNKNOWN

// The pass looks, and changes nothing; without an option it checks level spconv. levels/ has the rule of each.

// STAGES: check-level.mlir:{{[0-9]+:[0-9]+}}: error: spconv.subm_conv3d is not allowed on the host side at level stages
// STAGES: note: level stages: functions of maps, compact, pack_weight, fill, gemm, pool and work on rows; no convolutions
// STAGES: note: in pass check-level, at level stages: %{{.+}} = "spconv.subm_conv3d"
// UNKNOWN: error: unknown level 'asm'; accepted: spconv, stages, gpu, rocdl, nvvm, loops, cpu
// CHECK: "spconv.subm_conv3d"
func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}
