// RUN: %opt %s --split-input-file --verify-diagnostics

gpu.module @kernels {
  gpu.func @element(%in: !spconv.buffer<bf16>, %index: i32) workgroup(%memory: memref<1024xf32, #gpu.address_space<workgroup>>) kernel {
    // expected-error @below {{copies !spconv.buffer<bf16> to memref<1024xf32, #gpu.address_space<workgroup>>; accepted: workgroup memory of one axis and the same element}}
    "spconv.tile_copy"(%in, %index, %memory, %index) : (!spconv.buffer<bf16>, i32, memref<1024xf32, #gpu.address_space<workgroup>>, i32) -> ()
    gpu.return
  }
}

// -----

gpu.module @kernels {
  gpu.func @space(%in: !spconv.buffer<f32>, %index: i32, %memory: memref<1024xf32>) kernel {
    // expected-error @below {{copies !spconv.buffer<f32> to memref<1024xf32>}}
    "spconv.tile_copy"(%in, %index, %memory, %index) : (!spconv.buffer<f32>, i32, memref<1024xf32>, i32) -> ()
    gpu.return
  }
}

// -----

gpu.module @kernels {
  gpu.func @fewer_than_none() kernel {
    // expected-error @below {{newest is -1; accepted: 0 or more groups}}
    "spconv.tile_copy_wait"() {newest = -1 : i64} : () -> ()
    gpu.return
  }
}

// -----

gpu.module @kernels {
  gpu.func @group_of_a_buffer(%in: !spconv.buffer<f32>) kernel {
    // expected-error @below {{op expects exactly 0 operands, but got 1}}
    "spconv.tile_copy_group"(%in) : (!spconv.buffer<f32>) -> ()
    gpu.return
  }
}
