// RUN: %opt %s --split-input-file --verify-diagnostics

// Every rule of the ops inside kernels, broken once.

func.func @f(%buffer: !spconv.buffer<f32>, %n: i64) {
  // expected-error @below {{'spconv.tile_bound' changes the type !spconv.buffer<f32> to !spconv.buffer<i32>}}
  %0 = "spconv.tile_bound"(%buffer, %n) : (!spconv.buffer<f32>, i64) -> !spconv.buffer<i32>
  return
}

// -----

// A buffer can have more elements than an i32 counts.
func.func @f(%buffer: !spconv.buffer<f32>, %n: i32) {
  // expected-error @below {{expected 'i64' but got 'i32'}}
  %0 = "spconv.tile_bound"(%buffer, %n) : (!spconv.buffer<f32>, i32) -> !spconv.buffer<f32>
  return
}

// -----

func.func @f(%buffer: !spconv.buffer<f32>, %i: i32) {
  // expected-error @below {{'spconv.tile_load' moves bf16 but the buffer is !spconv.buffer<f32>}}
  %0 = "spconv.tile_load"(%buffer, %i) : (!spconv.buffer<f32>, i32) -> bf16
  return
}

// -----

func.func @f(%buffer: !spconv.buffer<f32>, %i: i32) {
  // expected-error @below {{'spconv.tile_load' moves vector<4xi32> but the buffer is !spconv.buffer<f32>}}
  %0 = "spconv.tile_load"(%buffer, %i) : (!spconv.buffer<f32>, i32) -> vector<4xi32>
  return
}

// -----

func.func @f(%buffer: !spconv.buffer<f32>, %i: index) {
  // expected-error @below {{'index' does not satisfy the constraint}}
  %0 = "spconv.tile_load"(%buffer, %i) : (!spconv.buffer<f32>, index) -> f32
  return
}

// -----

func.func @f(%value: f16, %buffer: !spconv.buffer<f32>, %i: i32) {
  // expected-error @below {{'spconv.tile_store' moves f16 but the buffer is !spconv.buffer<f32>}}
  "spconv.tile_store"(%value, %buffer, %i) : (f16, !spconv.buffer<f32>, i32) -> ()
  return
}

// -----

func.func @f(%value: i32, %buffer: !spconv.buffer<f32>, %i: i32) {
  // expected-error @below {{'spconv.tile_atomic' moves i32 but the buffer is !spconv.buffer<f32>}}
  "spconv.tile_atomic"(%value, %buffer, %i) {kind = "add"} : (i32, !spconv.buffer<f32>, i32) -> ()
  return
}

// -----

func.func @f(%value: i32, %buffer: !spconv.buffer<i32>, %i: i32) {
  // expected-error @below {{'spconv.tile_atomic' kind "fadd" on i32; accepted:}}
  "spconv.tile_atomic"(%value, %buffer, %i) {kind = "fadd"} : (i32, !spconv.buffer<i32>, i32) -> ()
  return
}

// -----

// An atomic works on one element: vectors are no kind's type.
func.func @f(%value: vector<2xf32>, %buffer: !spconv.buffer<f32>, %i: i32) {
  // expected-error @below {{'spconv.tile_atomic' kind "fadd" on vector<2xf32>; accepted:}}
  "spconv.tile_atomic"(%value, %buffer, %i) {kind = "fadd"} : (vector<2xf32>, !spconv.buffer<f32>, i32) -> ()
  return
}

// -----

func.func @f(%value: i32, %buffer: !spconv.buffer<i32>, %i: i32) {
  // expected-error @below {{'spconv.tile_atomic' kind "xor" on i32; accepted:}}
  "spconv.tile_atomic"(%value, %buffer, %i) {kind = "xor"} : (i32, !spconv.buffer<i32>, i32) -> ()
  return
}

// -----

func.func @f(%a: vector<8xbf16>, %b: vector<8xf16>, %c: vector<4xf32>) {
  // expected-error @below {{'spconv.tile_mma' multiplies vector<8xbf16> with vector<8xf16>}}
  %0 = "spconv.tile_mma"(%a, %b, %c) {shape = array<i64: 16, 16, 32>} : (vector<8xbf16>, vector<8xf16>, vector<4xf32>) -> vector<4xf32>
  return
}

// -----

func.func @f(%a: vector<8xbf16>, %c: vector<4xf32>) {
  // expected-error @below {{'spconv.tile_mma' accumulates vector<4xf32> into vector<8xf32>}}
  %0 = "spconv.tile_mma"(%a, %a, %c) {shape = array<i64: 16, 16, 32>} : (vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<8xf32>
  return
}

// -----

func.func @f(%a: vector<8xbf16>, %c: vector<4xf32>) {
  // expected-error @below {{'spconv.tile_mma' shape is array<i64: 16, 16>; accepted: array<i64: m, n, k>}}
  %0 = "spconv.tile_mma"(%a, %a, %c) {shape = array<i64: 16, 16>} : (vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>
  return
}

// -----

func.func @f(%a: vector<8xbf16>, %c: vector<4xf32>) {
  // expected-error @below {{'spconv.tile_mma' shape is [16, 16, 32]; accepted: array<i64: m, n, k>}}
  %0 = "spconv.tile_mma"(%a, %a, %c) {shape = [16, 16, 32]} : (vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>
  return
}

// -----

func.func @f(%value: i32, %buffer: !spconv.buffer<f32>, %i: i32) {
  // expected-error @below {{'spconv.tile_fetch_add' moves i32 but the buffer is !spconv.buffer<f32>}}
  %0 = "spconv.tile_fetch_add"(%value, %buffer, %i) : (i32, !spconv.buffer<f32>, i32) -> i32
  return
}

// -----

func.func @f(%buffer: !spconv.buffer<i32>, %i: i32) {
  // expected-error @below {{'spconv.tile_load_device' moves vector<4xi32>; accepted: i32, i64, which move whole}}
  %0 = "spconv.tile_load_device"(%buffer, %i) : (!spconv.buffer<i32>, i32) -> vector<4xi32>
  return
}

// -----

func.func @f(%value: f32, %buffer: !spconv.buffer<f32>, %i: i32) {
  // expected-error @below {{'spconv.tile_store_device' moves f32; accepted: i32, i64, which move whole}}
  "spconv.tile_store_device"(%value, %buffer, %i) : (f32, !spconv.buffer<f32>, i32) -> ()
  return
}

// -----

func.func @f(%buffer: !spconv.buffer<f32>, %n: i64) {
  // expected-error @below {{'spconv.tile_address' gives i64; accepted: !llvm.ptr<1>}}
  %0 = "spconv.tile_address"(%buffer, %n) : (!spconv.buffer<f32>, i64) -> i64
  return
}
