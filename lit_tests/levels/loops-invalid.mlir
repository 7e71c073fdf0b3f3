// RUN: %opt %s -p check-level{level=loops} --split-input-file --verify-diagnostics

// Level loops: a plan, and functions of structured control flow for any processor.

module {
  func.func @allowed(%buffer: !spconv.buffer<f32>) {
    %0 = "spconv.argument"(%buffer) : (!spconv.buffer<f32>) -> !spconv.argument
    "spconv.launch"(%0) {kernel = @kernels::@k, grid = []} : (!spconv.argument) -> ()
    return
  }
  module @kernels {
    func.func @k(%buffer: !llvm.ptr, %n: i64) -> i64 {
      %zero = arith.constant 0 : i64
      %one = arith.constant 1 : i64
      scf.for %i = %zero to %n step %one : i64 {
        %value = llvm.load %buffer : !llvm.ptr -> vector<8xf32>
        %root = math.sqrt %value : vector<8xf32>
        %sum = vector.reduction <add>, %root : vector<8xf32> into f32
      }
      return %zero : i64
    }
  }
}

// -----

func.func @stage(%map: !spconv.map<27>) {
  // expected-error @below {{spconv.compact is not allowed on the host side at level loops}}
  // expected-note @below {{level loops: a host plan, and functions of scf, arith, math, vector and llvm memory ops}}
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  return
}

// -----

// Loops belong into kernels.
func.func @host(%n: i64) {
  // expected-error @below {{scf.for is not allowed on the host side at level loops}}
  // expected-note @below {{level loops}}
  scf.for %i = %n to %n step %n : i64 {
  }
  return
}

// -----

module {
  module @kernels {
    func.func @k(%buffer: !spconv.buffer<f32>, %i: i32) {
      // expected-error @below {{spconv.tile_load is not allowed inside kernels at level loops}}
      // expected-note @below {{level loops}}
      %0 = "spconv.tile_load"(%buffer, %i) : (!spconv.buffer<f32>, i32) -> f32
      return
    }
  }
}
