// RUN: %opt %s -p convert-spconv-to-stages -p cse | %filecheck %s
// RUN: %opt %s --passes 'convert-spconv-to-stages, cse' | %filecheck %s
// RUN: %opt - < %s -p 'convert-spconv-to-stages,canonicalize{top-down=false},cse' | %filecheck %s
// RUN: %opt %s -p convert-spconv-to-stages,cse -o %t.mlir
// RUN: %filecheck %s --input-file %t.mlir
// RUN: %opt %s -p 'convert-spconv-to-stages,func.func(cse)' | %filecheck %s

// Passes run in the order given, ours and upstream's alike; upstream options and nesting are handed on.

// CHECK-LABEL: func.func @f
func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<16x3x3x3x16xf32>) -> tensor<?x16xf32> {
  // CHECK-COUNT-1: "spconv.map"
  // CHECK-NOT: "spconv.map"
  // CHECK-COUNT-2: "spconv.gemm"
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<16x3x3x3x16xf32>) -> tensor<?x16xf32>
  %1 = "spconv.subm_conv3d"(%coords, %0, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<16x3x3x3x16xf32>) -> tensor<?x16xf32>
  return %1 : tensor<?x16xf32>
}
