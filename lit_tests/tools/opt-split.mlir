// RUN: %opt %s --split-input-file | %filecheck %s

// Each case is parsed and printed on its own, so that one symbol may be defined in every case.

// CHECK: func.func @f()
func.func @f() {
  return
}

// -----

// CHECK: // -----
// CHECK: func.func @f(%arg0: i32)
func.func @f(%a: i32) {
  return
}

    // -----

// CHECK: // -----
// CHECK: func.func @f(%arg0: i64)
func.func @f(%a: i64) {
  return
}
