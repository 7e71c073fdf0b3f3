// RUN: %opt %s -p check-level{level=nvvm} --split-input-file --verify-diagnostics

// Level nvvm: the plan is as before, kernels are of the llvm and nvvm dialects.

module attributes {gpu.container_module} {
  func.func @allowed(%buffer: !spconv.buffer<i32>) {
    %0 = "spconv.argument"(%buffer) : (!spconv.buffer<i32>) -> !spconv.argument
    "spconv.launch"(%0) {kernel = @kernels::@k, grid = []} : (!spconv.argument) -> ()
    return
  }
  gpu.module @kernels {
    llvm.func @k(%buffer: !llvm.ptr<1>) attributes {gpu.kernel, nvvm.kernel} {
      %lane = nvvm.read.ptx.sreg.tid.x : i32
      llvm.store %lane, %buffer : i32, !llvm.ptr<1>
      llvm.return
    }
  }
}

// -----

module attributes {gpu.container_module} {
  gpu.module @kernels {
    // expected-error @below {{gpu.func is not allowed inside kernels at level nvvm}}
    // expected-note @below {{level nvvm: a host plan, and kernels of the llvm and nvvm dialects only}}
    gpu.func @k() kernel {
      gpu.return
    }
  }
}

// -----

module attributes {gpu.container_module} {
  gpu.module @kernels {
    llvm.func @k(%a: i32) {
      // expected-error @below {{arith.addi is not allowed inside kernels at level nvvm}}
      // expected-note @below {{level nvvm}}
      %0 = arith.addi %a, %a : i32
      llvm.return
    }
  }
}

// -----

// expected-error @below {{llvm.func is not allowed on the host side at level nvvm}}
// expected-note @below {{level nvvm}}
llvm.func @host() {
  llvm.return
}
