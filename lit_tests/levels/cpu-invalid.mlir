// RUN: %opt %s -p check-level{level=cpu} --split-input-file --verify-diagnostics

// Level cpu: the plan is as before, kernels are of the llvm dialect.

module {
  func.func @allowed() {
    "spconv.launch"() {kernel = @kernels::@k, grid = []} : () -> ()
    return
  }
  module @kernels {
    llvm.func @k() -> i64 {
      %0 = llvm.mlir.constant(0 : i64) : i64
      llvm.return %0 : i64
    }
  }
}

// -----

module {
  module @kernels {
    // expected-error @below {{func.func is not allowed inside kernels at level cpu}}
    // expected-note @below {{level cpu: a host plan, and functions of the llvm dialect only}}
    func.func @k() {
      return
    }
  }
}

// -----

module {
  module @kernels {
    llvm.func @k(%a: vector<8xf32>) {
      // expected-error @below {{vector.reduction is not allowed inside kernels at level cpu}}
      // expected-note @below {{level cpu}}
      %0 = vector.reduction <add>, %a : vector<8xf32> into f32
      llvm.return
    }
  }
}

// -----

module {
  module @kernels {
    llvm.func @k() {
      // expected-error @below {{rocdl.workitem.id.x is not allowed inside kernels at level cpu}}
      // expected-note @below {{level cpu}}
      %0 = rocdl.workitem.id.x : i32
      llvm.return
    }
  }
}
