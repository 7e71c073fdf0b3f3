// RUN: %opt %s -p check-level{level=gpu} --split-input-file --verify-diagnostics

// Level gpu: a plan on the host side, target-neutral kernels; neither tensors' ops nor a target's.

module attributes {gpu.container_module} {
  func.func @allowed(%buffer: !spconv.buffer<i32>) {
    %n = "spconv.symbol"() {name = "rows"} : () -> i32
    %scratch = "spconv.alloc"() {name = "scratch", size = affine_map<()[rows, cells, threads] -> (rows)>} : () -> !spconv.buffer<i32>
    %0 = "spconv.argument"(%buffer) : (!spconv.buffer<i32>) -> !spconv.argument
    "spconv.launch"(%0) {kernel = @kernels::@k, grid = []} : (!spconv.argument) -> ()
    return
  }
  gpu.module @kernels {
    gpu.func @k(%buffer: !spconv.buffer<i32>) kernel {
      %lane = gpu.thread_id x
      %i = arith.index_cast %lane : index to i32
      %value = "spconv.tile_load"(%buffer, %i) : (!spconv.buffer<i32>, i32) -> i32
      gpu.return
    }
  }
}

// -----

func.func @stage(%map: !spconv.map<27>) {
  // expected-error @below {{spconv.compact is not allowed on the host side at level gpu}}
  // expected-note @below {{level gpu: a host plan, and gpu.func kernels of}}
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  return
}

// -----

// Casts between stage values and buffers are left only while the passes of this level run.
func.func @cast(%buffer: !spconv.buffer<f32>) {
  // expected-error @below {{builtin.unrealized_conversion_cast is not allowed on the host side at level gpu}}
  // expected-note @below {{level gpu}}
  %0 = builtin.unrealized_conversion_cast %buffer : !spconv.buffer<f32> to tensor<?x16xf32>
  return
}

// -----

// What belongs into kernels does not belong on the host side.
func.func @tile(%buffer: !spconv.buffer<f32>, %i: i32) {
  // expected-error @below {{spconv.tile_load is not allowed on the host side at level gpu}}
  // expected-note @below {{level gpu}}
  %0 = "spconv.tile_load"(%buffer, %i) : (!spconv.buffer<f32>, i32) -> f32
  return
}

// -----

module attributes {gpu.container_module} {
  gpu.module @kernels {
    gpu.func @k() kernel {
      // expected-error @below {{rocdl.workitem.id.x is not allowed inside kernels at level gpu}}
      // expected-note @below {{level gpu}}
      %0 = rocdl.workitem.id.x : i32
      gpu.return
    }
  }
}

// -----

module attributes {gpu.container_module} {
  gpu.module @kernels {
    gpu.func @k() kernel {
      // expected-error @below {{spconv.alloc is not allowed inside kernels at level gpu}}
      // expected-note @below {{level gpu}}
      %0 = "spconv.alloc"() {name = "g", size = affine_map<()[rows, cells, threads] -> (cells)>} : () -> !spconv.buffer<i32>
      gpu.return
    }
  }
}
