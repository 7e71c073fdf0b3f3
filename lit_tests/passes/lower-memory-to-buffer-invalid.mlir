// RUN: %opt %s -p lower-memory-to-buffer{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p lower-memory-to-buffer{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

// Global instructions check no bounds.
gpu.module @kernels {
  gpu.func @bound(%in: !spconv.buffer<f32>, %n: i64, %i: i64) kernel {
    %b = "spconv.tile_bound"(%in, %n) : (!spconv.buffer<f32>, i64) -> !spconv.buffer<f32>
    // expected-error @below {{a bounded buffer is reached by global addresses}}
    // expected-note @below {{supported: an i32 index}}
    %v = "spconv.tile_load"(%b, %i) : (!spconv.buffer<f32>, i64) -> f32
    gpu.return
  }
}

// -----

gpu.module @kernels {
  gpu.func @bounded_add(%in: !spconv.buffer<i32>, %n: i64, %i: i32) kernel {
    %b = "spconv.tile_bound"(%in, %n) : (!spconv.buffer<i32>, i64) -> !spconv.buffer<i32>
    // expected-error @below {{a bounded buffer is reached by global addresses}}
    // expected-note @below {{supported: an i32 index}}
    "spconv.tile_atomic"(%i, %b, %i) {kind = "add"} : (i32, !spconv.buffer<i32>, i32) -> ()
    gpu.return
  }
}
