// RUN: %opt %s -p canonicalize,cse --print-after cse 2>&1 >%t.out | %filecheck %s --check-prefix=ONE
// RUN: %opt %s -p canonicalize,cse --print-after all 2>&1 >%t.out | %filecheck %s --check-prefix=ALL
// RUN: %opt %s --generic | %filecheck %s --check-prefix=GENERIC

// --print-after prints to stderr, so that the result can still be piped; --generic shows every attribute.

// ONE-NOT: after canonicalize
// ONE: // ----- after cse
// ONE-NEXT: module {
// ALL: // ----- after canonicalize
// ALL: // ----- after cse
// GENERIC: "func.func"() <{function_type = () -> (), sym_name = "f"}> ({
func.func @f() {
  return
}
