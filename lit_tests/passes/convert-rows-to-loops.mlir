// RUN: %opt %s -p convert-rows-to-loops{target=x86-64-v3} --split-input-file | %filecheck %s

// Every gemm starts its rows itself: nothing is left to do for a fill.
// CHECK-LABEL: func.func @fill
// CHECK-NOT: "spconv.
// CHECK: return
func.func @fill(%coords: !spconv.coords<32>) {
  %0 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  return
}

// -----

// An epilogue that no gemm could take: activation in f32, then one rounding.
// CHECK-LABEL: func.func @relu
func.func @relu(%sum: tensor<?x16xf32>) -> tensor<?x16xbf16> {
  // CHECK: [[ROWS:%.+]] = "spconv.alloc"() {name = "rows"
  // CHECK-SAME: !spconv.buffer<bf16>
  // CHECK: "spconv.launch"
  // CHECK-SAME: group = "output", kernel = @kernels::@apply_relu_bf16_16
  // CHECK: builtin.unrealized_conversion_cast [[ROWS]] : !spconv.buffer<bf16> to tensor<?x16xbf16>
  %0 = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x16xf32>) -> tensor<?x16xbf16>
  return %0 : tensor<?x16xbf16>
}
