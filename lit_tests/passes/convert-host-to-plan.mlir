// RUN: %opt %s -p convert-host-to-plan | %filecheck %s

// The function around the launches becomes a plan: buffers in, buffers out, no casts.

// CHECK-LABEL: func.func @conv(
// CHECK-SAME: [[COORDS:%.+]]: !spconv.buffer<i32> {spconv.name = "coords"}
// CHECK-SAME: [[FEATURES:%.+]]: !spconv.buffer<bf16> {spconv.name = "features"}
// CHECK-SAME: [[WEIGHT:%.+]]: !spconv.buffer<bf16> {spconv.name = "weight"}
// CHECK-SAME: [[BIAS:%.+]]: !spconv.buffer<f32> {spconv.name = "bias"}
// CHECK-SAME: [[OUT:%.+]]: !spconv.buffer<f32> {spconv.name = "out"}) {
func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xbf16>, %bias: tensor<32xf32>) -> tensor<?x32xf32> {
  // CHECK-NOT: builtin.unrealized_conversion_cast
  %rows = builtin.unrealized_conversion_cast %features : tensor<?x16xbf16> to !spconv.buffer<bf16>
  // Scratch stays, the buffer of the result is passed in.
  // CHECK: "spconv.alloc"() {name = "scratch"
  // CHECK-NOT: "spconv.alloc"
  %scratch = "spconv.alloc"() {name = "scratch", size = affine_map<()[rows, cells, threads] -> (cells)>} : () -> !spconv.buffer<i32>
  %sum = "spconv.alloc"() {name = "sum", size = affine_map<()[rows, cells, threads] -> (rows * 32)>} : () -> !spconv.buffer<f32>
  // CHECK: "spconv.argument"([[FEATURES]])
  %0 = "spconv.argument"(%rows) : (!spconv.buffer<bf16>) -> !spconv.argument
  // CHECK: "spconv.argument"([[OUT]])
  %1 = "spconv.argument"(%sum) : (!spconv.buffer<f32>) -> !spconv.argument
  %2 = "spconv.argument"(%scratch) : (!spconv.buffer<i32>) -> !spconv.argument
  // CHECK: "spconv.launch"
  "spconv.launch"(%0, %1, %2) {kernel = @kernels::@gemm, grid = []} : (!spconv.argument, !spconv.argument, !spconv.argument) -> ()
  // A value that nothing reads any more, such as a map whose pairs are made, goes with its cast.
  %map = builtin.unrealized_conversion_cast %scratch : !spconv.buffer<i32> to !spconv.map<27>
  %out = builtin.unrealized_conversion_cast %sum : !spconv.buffer<f32> to tensor<?x32xf32>
  // CHECK: return{{$}}
  return %out : tensor<?x32xf32>
}

// Several results, and arguments that are not those of one convolution: numbered names.
// CHECK-LABEL: func.func @two_results(
// CHECK-SAME: spconv.name = "arg0"
// CHECK-SAME: spconv.name = "out0"
// CHECK-SAME: spconv.name = "out1"
func.func @two_results(%coords: !spconv.coords<64>) -> (tensor<?x32xf32>, tensor<?x16xbf16>) {
  %0 = "spconv.alloc"() {name = "a", size = affine_map<()[rows, cells, threads] -> (rows * 32)>} : () -> !spconv.buffer<f32>
  %1 = "spconv.alloc"() {name = "b", size = affine_map<()[rows, cells, threads] -> (rows * 16)>} : () -> !spconv.buffer<bf16>
  %2 = builtin.unrealized_conversion_cast %0 : !spconv.buffer<f32> to tensor<?x32xf32>
  %3 = builtin.unrealized_conversion_cast %1 : !spconv.buffer<bf16> to tensor<?x16xbf16>
  return %2, %3 : tensor<?x32xf32>, tensor<?x16xbf16>
}

// A declaration has nothing to convert.
// CHECK: func.func private @declared(!spconv.coords<32 : i64>)
func.func private @declared(!spconv.coords<32>)

// Names that the arguments have are kept.
// CHECK-LABEL: func.func @named(
// CHECK-SAME: {spconv.name = "coords"}, %{{[a-z0-9]+}}: !spconv.buffer<i32> {spconv.name = "out_coords"}
// CHECK-SAME: spconv.name = "out"
func.func @named(%coords: !spconv.coords<32> {spconv.name = "coords"}, %out: !spconv.coords<32> {spconv.name = "out_coords"}) -> tensor<?x32xf32> {
  %0 = "spconv.alloc"() {name = "a", size = affine_map<()[rows, cells, threads, coarse_rows] -> (coarse_rows * 32)>} : () -> !spconv.buffer<f32>
  %1 = builtin.unrealized_conversion_cast %0 : !spconv.buffer<f32> to tensor<?x32xf32>
  return %1 : tensor<?x32xf32>
}
