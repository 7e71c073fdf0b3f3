// RUN: %opt %s --split-input-file --verify-diagnostics

// Every rule of the host plan, broken once.

func.func @f() {
  // expected-error @below {{'spconv.symbol' symbol "columns"; accepted: rows, cells, threads, coarse_rows, min_z,}}
  %0 = "spconv.symbol"() {name = "columns"} : () -> i32
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.symbol' symbol of type index; accepted: i32, i64}}
  %0 = "spconv.symbol"() {name = "rows"} : () -> index
  return
}

// -----

func.func @f() {
  // expected-error @below {{expected base attribute 'builtin.string' but got 'builtin.integer'}}
  %0 = "spconv.symbol"() {name = 1} : () -> i32
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.alloc' size is 64 : i64; accepted: affine_map<()[rows, cells, threads] -> (count)>}}
  %0 = "spconv.alloc"() {name = "grid", size = 64} : () -> !spconv.buffer<i32>
  return
}

// -----

// Sizes know no dimensions, all three symbols, and give one number.
func.func @f() {
  // expected-error @below {{'spconv.alloc' size is affine_map<(d0)[s0, s1, s2] -> (d0)>; accepted:}}
  %0 = "spconv.alloc"() {name = "grid", size = affine_map<(n)[rows, cells, threads] -> (n)>} : () -> !spconv.buffer<i32>
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.alloc' size is affine_map<()[s0] -> (s0)>; accepted:}}
  %0 = "spconv.alloc"() {name = "grid", size = affine_map<()[rows] -> (rows)>} : () -> !spconv.buffer<i32>
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.alloc' size is affine_map<()[s0, s1, s2] -> (s0, s1)>; accepted:}}
  %0 = "spconv.alloc"() {name = "grid", size = affine_map<()[rows, cells, threads] -> (rows, cells)>} : () -> !spconv.buffer<i32>
  return
}

// -----

func.func @f(%features: tensor<?x16xf32>) {
  // expected-error @below {{'spconv.argument' passes tensor<?x16xf32>; accepted: a buffer, i32 or i64}}
  %0 = "spconv.argument"(%features) : (tensor<?x16xf32>) -> !spconv.argument
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.launch' grid is affine_map<()[s0, s1, s2] -> (s0)>; accepted: an array of at most three affine maps}}
  "spconv.launch"() {kernel = @kernels::@f, grid = affine_map<()[rows, cells, threads] -> (rows)>} : () -> ()
  return
}

// -----

#one = affine_map<()[rows, cells, threads] -> (1)>
func.func @f() {
  // expected-error @below {{; accepted: an array of at most three affine maps}}
  "spconv.launch"() {kernel = @kernels::@f, grid = [#one, #one, #one, #one]} : () -> ()
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.launch' grid is 256 : i64; accepted: affine_map<()[rows, cells, threads] -> (count, …, of which the least holds)>}}
  "spconv.launch"() {kernel = @kernels::@f, grid = [256]} : () -> ()
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.launch' kernel is "f"; accepted: a symbol, such as @kernels::@name}}
  "spconv.launch"() {kernel = "f", grid = []} : () -> ()
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.launch' block is 0 : i64; accepted: an integer of at least 1}}
  "spconv.launch"() {kernel = @kernels::@f, grid = [], block = 0} : () -> ()
  return
}

// -----

func.func @f() {
  // expected-error @below {{'spconv.launch' group is "features"; accepted: fine, coarse, coords, decode, map, pairs, weights, output}}
  "spconv.launch"() {kernel = @kernels::@f, grid = [], group = "features"} : () -> ()
  return
}

// -----

// Operands are type-erased first.
func.func @f(%coords: !spconv.buffer<i32>) {
  // expected-error @below {{expected base type 'spconv.argument' but got 'spconv.buffer'}}
  "spconv.launch"(%coords) {kernel = @kernels::@f, grid = []} : (!spconv.buffer<i32>) -> ()
  return
}
