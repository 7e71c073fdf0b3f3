// RUN: %opt %s -p convert-host-to-plan --split-input-file --verify-diagnostics

// What is returned must be a buffer that the function allocates, and no stage value may be left.

// expected-error @below {{the result tensor<?x16xf32> is not a buffer that this function allocates}}
// expected-note @below {{supported: functions that return the output of a convolution}}
func.func @argument(%features: tensor<?x16xf32>) -> tensor<?x16xf32> {
  return %features : tensor<?x16xf32>
}

// -----

// expected-error @below {{the result tensor<?x16xf32> is not a buffer that this function allocates}}
// expected-note @below {{supported: functions that return the output of a convolution}}
func.func @buffer_of_an_argument(%features: tensor<?x16xf32>) -> tensor<?x16xf32> {
  %0 = builtin.unrealized_conversion_cast %features : tensor<?x16xf32> to !spconv.buffer<f32>
  %1 = builtin.unrealized_conversion_cast %0 : !spconv.buffer<f32> to tensor<?x16xf32>
  return %1 : tensor<?x16xf32>
}

// -----

// Pairs are several buffers.
// expected-error @below {{the result !spconv.pairs<27 : i64> is not a buffer that this function allocates}}
// expected-note @below {{supported: functions that return the output of a convolution}}
func.func @pairs() -> !spconv.pairs<27> {
  %0 = "spconv.alloc"() {name = "a", size = affine_map<()[rows, cells, threads] -> (rows)>} : () -> !spconv.buffer<i32>
  %1 = "spconv.alloc"() {name = "b", size = affine_map<()[rows, cells, threads] -> (rows)>} : () -> !spconv.buffer<i32>
  %2 = builtin.unrealized_conversion_cast %0, %1 : !spconv.buffer<i32>, !spconv.buffer<i32> to !spconv.pairs<27>
  return %2 : !spconv.pairs<27>
}

// -----

func.func @still_in_use() -> tensor<?x32xf32> {
  %0 = "spconv.alloc"() {name = "a", size = affine_map<()[rows, cells, threads] -> (rows)>} : () -> !spconv.buffer<f32>
  // expected-error @below {{the stage value tensor<?x32xf32> is still in use}}
  %1 = builtin.unrealized_conversion_cast %0 : !spconv.buffer<f32> to tensor<?x32xf32>
  %2 = "spconv.apply_epilogue"(%1) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xf32>
  %3 = "spconv.alloc"() {name = "b", size = affine_map<()[rows, cells, threads] -> (rows)>} : () -> !spconv.buffer<f32>
  %4 = builtin.unrealized_conversion_cast %3 : !spconv.buffer<f32> to tensor<?x32xf32>
  return %4 : tensor<?x32xf32>
}

// -----

// expected-error @below {{the result of spconv.fill has not been lowered to buffers yet}}
// expected-note @below {{run the convert-*-to-gpu or convert-*-to-loops passes first}}
func.func @stages(%coords: !spconv.coords<32>) -> tensor<?x16xf32> {
  %0 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
