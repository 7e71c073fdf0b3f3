// RUN: %opt %s --split-input-file --verify-diagnostics

// Every rule of the ops between two coordinate sets, broken once.

func.func @f(%a: !spconv.coords<16>) {
  // expected-error @below {{'spconv.output_coords' coords have type !spconv.coords<16 : i64>; accepted key widths: (32, 64)}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<16>) -> !spconv.coords<16>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{'spconv.output_coords' the coordinate sets are !spconv.coords<32 : i64> and !spconv.coords<64 : i64>; accepted: keys of one width}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<64>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{'spconv.output_coords' kernel_size is [3, 0, 3]; accepted: three numbers of at least 1}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 0, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{'spconv.output_coords' stride is array<i64: 2, 2>; accepted: array<i64: z, y, x>}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{'spconv.output_coords' stride is [2, 0, 2]; accepted: three numbers of at least 1}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 0, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  return
}

// -----

// Padding may be zero, and no less.
func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{'spconv.output_coords' padding is [0, -1, 0]; accepted: three numbers of at least 0}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, -1, 0>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{'spconv.output_coords' dilation is [4294967296, 1, 1]; accepted: at most 2147483647 along an axis}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 4294967296, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{'spconv.output_coords' transposed is 1 : i64; accepted: true, false}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = 1 : i64} : (!spconv.coords<32>) -> !spconv.coords<32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{'spconv.output_coords' schedule is 1 : i64; accepted:}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = 1} : (!spconv.coords<32>) -> !spconv.coords<32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>) {
  // expected-error @below {{attribute "transposed" is expected but not provided}}
  %0 = "spconv.output_coords"(%a) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<64>, %f: tensor<?x16xf32>, %w: tensor<32x2x2x2x16xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' the coordinate sets are !spconv.coords<32 : i64> and !spconv.coords<64 : i64>; accepted: keys of one width}}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<64>, tensor<?x16xf32>, tensor<32x2x2x2x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>, %w: tensor<32x2x2x2x16xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' stride is [0, 1, 1]; accepted: three numbers of at least 1}}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w) {stride = array<i64: 0, 1, 1>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<32x2x2x2x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>, %w: tensor<32x2x2x2x16xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' transposed is unit; accepted: true, false}}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = unit, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<32x2x2x2x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>, %w: tensor<32x2x2x2x16xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' epilogue is #spconv.epilogue<"tanh">; accepted activations: "none", "relu", }}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"tanh">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<32x2x2x2x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x8xf32>, %w: tensor<32x2x2x2x16xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' features have 8 channels but the weight takes 16}}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x8xf32>, tensor<32x2x2x2x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>, %w: tensor<32x2x2x2x16xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' the result has 64 channels but the weight gives 32}}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<32x2x2x2x16xf32>) -> tensor<?x64xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xbf16>, %w: tensor<32x2x2x2x16xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' features are bf16 but the weight is f32}}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xbf16>, tensor<32x2x2x2x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>, %w: tensor<32x2x2x2x16xf32>, %bias: tensor<16xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' bias is tensor<16xf32>; accepted: tensor<32xf32>}}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w, %bias) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<32x2x2x2x16xf32>, tensor<16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>, %w: tensor<8x16x32xf32>) {
  // expected-error @below {{'spconv.sparse_conv3d' weight is tensor<8x16x32xf32>; accepted: tensor<C_out x kz x ky x kx x C_in x T>, all static}}
  %0 = "spconv.sparse_conv3d"(%a, %b, %f, %w) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<8x16x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>) {
  // expected-error @below {{'spconv.sparse_pool3d' mode is 'min'; accepted: ('max', 'avg')}}
  %0 = "spconv.sparse_pool3d"(%a, %b, %f) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, mode = "min"} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>) {
  // expected-error @below {{'spconv.sparse_pool3d' features are tensor<?x16xf32> but the result is tensor<?x8xf32>; a pool keeps channels and type}}
  %0 = "spconv.sparse_pool3d"(%a, %b, %f) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, mode = "max"} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>) -> tensor<?x8xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<4x16xf32>) {
  // expected-error @below {{'spconv.sparse_pool3d' features is tensor<4x16xf32>; accepted: tensor<?xCxT>}}
  %0 = "spconv.sparse_pool3d"(%a, %b, %f) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, mode = "max"} : (!spconv.coords<32>, !spconv.coords<32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>, %f: tensor<?x16xf32>) {
  // expected-error @below {{'spconv.sparse_pool3d' padding is [-1, 0, 0]; accepted: three numbers of at least 0}}
  %0 = "spconv.sparse_pool3d"(%a, %b, %f) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: -1, 0, 0>, dilation = array<i64: 1, 1, 1>, mode = "max"} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<64>) {
  // expected-error @below {{'spconv.union_coords' the coordinate sets are !spconv.coords<32 : i64> and !spconv.coords<64 : i64>; accepted: keys of one width}}
  %0 = "spconv.union_coords"(%a, %b) : (!spconv.coords<32>, !spconv.coords<64>) -> !spconv.coords<32>
  return
}
