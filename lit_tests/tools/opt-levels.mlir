// RUN: %opt %s --to-level stages --target gfx950 --schedule pairs_m16 | %filecheck %s --check-prefixes=CHECK,GPU
// RUN: %opt %s --from-level spconv --to-level stages --target x86-64-v3 | %filecheck %s --check-prefixes=CHECK,CPU
// RUN: %opt %s --to-level spconv --target gfx950 | %filecheck %s --check-prefix=SAME
// RUN: env SPCONV_TARGET=gfx950 %opt %s --to-level stages --schedule pairs_m16 | %filecheck %s --check-prefixes=CHECK,GPU
// RUN: not %opt %s --from-level stages --to-level stages --target gfx950 2>&1 | %filecheck %s --check-prefix=WRONG

// --to-level runs every pass on the way to a level. The level that the input should be at is checked, too.

// WRONG: opt-levels.mlir:{{[0-9]+:[0-9]+}}: error: spconv.subm_conv3d is not allowed on the host side at level stages
// SAME: "spconv.subm_conv3d"
// CHECK-NOT: spconv.subm_conv3d
// CHECK: "spconv.gemm"
// GPU-SAME: #spconv.schedule<"pairs_m16"
// CPU-SAME: #spconv.schedule<"chunk_stationary"
func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xbf16>) -> tensor<?x32xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xbf16>, tensor<32x3x3x3x16xbf16>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}
