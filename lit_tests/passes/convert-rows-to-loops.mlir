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

// -----

// The other kernels on rows: a residual beside the sum, a scale and a shift, channels side by side.
// CHECK-LABEL: func.func @rows
func.func @rows(%x: tensor<?x16xbf16>, %r: tensor<?x16xf16>, %s: tensor<16xf32>) -> (tensor<?x16xbf16>, tensor<?x16xbf16>, tensor<?x32xbf16>) {
  // CHECK: "spconv.launch"
  // CHECK-SAME: kernel = @kernels::@apply_silu_bf16_bf16_plus_f16_16
  // CHECK-DAG: kernel = @kernels::@affine_bf16_bf16_16
  // CHECK-DAG: kernel = @kernels::@concat_bf16_16_16
  %0 = "spconv.apply_epilogue"(%x, %r) {epilogue = #spconv.epilogue<"silu">} : (tensor<?x16xbf16>, tensor<?x16xf16>) -> tensor<?x16xbf16>
  %1 = "spconv.affine"(%x, %s, %s) : (tensor<?x16xbf16>, tensor<16xf32>, tensor<16xf32>) -> tensor<?x16xbf16>
  %2 = "spconv.concat"(%x, %x) : (tensor<?x16xbf16>, tensor<?x16xbf16>) -> tensor<?x32xbf16>
  return %0, %1, %2 : tensor<?x16xbf16>, tensor<?x16xbf16>, tensor<?x32xbf16>
}
