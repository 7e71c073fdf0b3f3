// RUN: %opt %s --split-input-file --verify-diagnostics

// Types and attributes say what their parameters are.

// expected-error @below {{expected base attribute 'builtin.integer' but got 'builtin.string'}}
func.func private @f(!spconv.coords<"wide">)

// -----

// expected-error @below {{expected base attribute 'builtin.integer' but got 'builtin.type'}}
func.func private @f(!spconv.map<i32>)

// -----

// expected-error @below {{expected 1 type arguments, but had 2}}
func.func private @f(!spconv.pairs<27, 32>)

// -----

// expected-error @below {{expected base attribute 'builtin.dictionary' but got 'builtin.integer'}}
func.func private @f() attributes {a = #spconv.schedule<"pairs_m16", 16>}

// -----

// expected-error @below {{'1 : i64' does not satisfy the constraint}}
func.func private @f() attributes {a = #spconv.epilogue<1>}
