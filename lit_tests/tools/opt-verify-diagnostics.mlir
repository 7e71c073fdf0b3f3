// RUN: %opt %s --split-input-file --verify-diagnostics

// Every form of the comment that says which diagnostic a line must give (tests/test_opt.py has those that fail).

func.func @this_line(%map: !spconv.map<27>) {
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<9> // expected-error {{the map is !spconv.map<27 : i64>}}
  return
}

// -----

func.func @above(%map: !spconv.map<27>) {
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<9>
  // expected-error @above {{but the pairs are}}
  return
}

// -----

// expected-error @+3 {{but the pairs are}}

func.func @relative(%map: !spconv.map<27>) {
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<9>
  return
}

// -----

func.func @back(%map: !spconv.map<27>) {
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<9>
  return
  // expected-error@-2 {{but the pairs are}}
}

// -----

func.func @regex(%map: !spconv.map<27>) {
  // expected-error-re @below {{the map is !spconv.map<{{[0-9]+}} : i64> but the pairs are !spconv.{{pairs<(9|10)}}}}
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<9>
  return
}

// -----

// An upstream error has its note about the op; it need not be expected.
func.func @upstream() -> i32 {
  // expected-error @below {{has 0 operands, but enclosing function (@upstream) returns 1}}
  return
}

// -----

// A parse error.
// expected-error @below {{custom op 'nonsense' is unknown}}
nonsense
