// RUN: not %opt %s 2>&1 | %filecheck %s
// RUN: not %opt < %s 2>&1 | %filecheck %s --check-prefix=STDIN

// A refused input gives its place as file:line:column, the line and a caret; there is no Python traceback.

// CHECK-NOT: Traceback
// CHECK: opt-errors.mlir:12:8: error: 'spconv.compact' the map is !spconv.map<27 : i64> but the pairs are !spconv.pairs<9 : i64>
// CHECK-NEXT:   %0 = "spconv.compact"(%map)
// CHECK-NEXT:{{^         \^$}}
// STDIN: <stdin>:12:8: error: 'spconv.compact' the map is
func.func @f(%map: !spconv.map<27>) {
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<9>
  return
}
