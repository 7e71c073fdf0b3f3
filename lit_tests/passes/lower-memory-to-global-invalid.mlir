// RUN: %opt %s -p lower-memory-to-global{target=sm_90} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p lower-memory-to-global{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

gpu.module @kernels {
  gpu.func @bounded_add(%in: !spconv.buffer<i32>, %n: i64, %i: i32) kernel {
    %b = "spconv.tile_bound"(%in, %n) : (!spconv.buffer<i32>, i64) -> !spconv.buffer<i32>
    // expected-error @below {{a bounded buffer is reached by an access that checks no bounds}}
    "spconv.tile_atomic"(%i, %b, %i) {kind = "add"} : (i32, !spconv.buffer<i32>, i32) -> ()
    gpu.return
  }
}

// -----

gpu.module @kernels {
  gpu.func @bounded_address(%in: !spconv.buffer<i32>, %n: i64) kernel {
    %b = "spconv.tile_bound"(%in, %n) : (!spconv.buffer<i32>, i64) -> !spconv.buffer<i32>
    // expected-error @below {{a bounded buffer is reached by an access that checks no bounds}}
    %p = "spconv.tile_address"(%b, %n) : (!spconv.buffer<i32>, i64) -> !llvm.ptr<1>
    gpu.return
  }
}
