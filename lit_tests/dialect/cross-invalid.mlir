// RUN: %opt %s --split-input-file --verify-diagnostics

// Every rule of the stages between two coordinate sets, broken once.

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>) {
  // expected-error @below {{'spconv.cross_map' kernel [3, 3, 3] has 27 taps but the map has 8}}
  %0 = "spconv.cross_map"(%a, %b) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<64>) {
  // expected-error @below {{'spconv.cross_map' the coordinate sets are !spconv.coords<32 : i64> and !spconv.coords<64 : i64>; accepted: keys of one width}}
  %0 = "spconv.cross_map"(%a, %b) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<64>) -> !spconv.cross_map<27>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<8>) {
  // expected-error @below {{'spconv.cross_map' coords have type !spconv.coords<8 : i64>; accepted key widths: (32, 64)}}
  %0 = "spconv.cross_map"(%a, %b) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<8>) -> !spconv.cross_map<27>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>) {
  // expected-error @below {{'spconv.cross_map' kernel_size is [-1, 3, 3]; accepted: three numbers of at least 1}}
  %0 = "spconv.cross_map"(%a, %b) {kernel_size = array<i64: -1, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return
}

// -----

func.func @f(%a: !spconv.coords<32>, %b: !spconv.coords<32>) {
  // expected-error @below {{'spconv.cross_map' schedule parameter chunk_rows is 0; accepted: 1 to 65536}}
  %0 = "spconv.cross_map"(%a, %b) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {chunk_rows = 0 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return
}

// -----

func.func @f(%m: !spconv.cross_map<27>) {
  // expected-error @below {{'spconv.cross_compact' the map is !spconv.cross_map<27 : i64> but the pairs are !spconv.pairs<8 : i64>}}
  %0 = "spconv.cross_compact"(%m) {transposed = false} : (!spconv.cross_map<27>) -> !spconv.pairs<8>
  return
}

// -----

func.func @f(%m: !spconv.cross_map<27>) {
  // expected-error @below {{'spconv.cross_compact' transposed is "yes"; accepted: true, false}}
  %0 = "spconv.cross_compact"(%m) {transposed = "yes"} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return
}

// -----

// A submanifold map is no map between two sets.
func.func @f(%m: !spconv.map<27>) {
  // expected-error @below {{expected base type 'spconv.cross_map' but got 'spconv.map'}}
  %0 = "spconv.cross_compact"(%m) {transposed = false} : (!spconv.map<27>) -> !spconv.pairs<27>
  return
}

// -----

func.func @f(%p: !spconv.pairs<8>, %f: tensor<?x4xf32>) {
  // expected-error @below {{'spconv.pool' mode is 'sum'; accepted: ('max', 'avg')}}
  %0 = "spconv.pool"(%p, %f) {mode = "sum"} : (!spconv.pairs<8>, tensor<?x4xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @f(%p: !spconv.pairs<8>, %f: tensor<?x4xf32>) {
  // expected-error @below {{'spconv.pool' features are tensor<?x4xf32> but the result is tensor<?x4xbf16>; a pool keeps channels and type}}
  %0 = "spconv.pool"(%p, %f) {mode = "max"} : (!spconv.pairs<8>, tensor<?x4xf32>) -> tensor<?x4xbf16>
  return
}
