// RUN: %opt %s -p lower-memory-to-buffer | %filecheck %s

// Copies to workgroup memory become loads that write there by themselves, 16 bytes a lane from the address of lane 0;
// groups and waits become marks, which the code generator counts.

gpu.module @kernels {
  // CHECK-LABEL: gpu.func @copies
  // CHECK-SAME: %[[IN:.+]]: !llvm.ptr<1> {{.*}}llvm.readonly
  // CHECK-SAME: llvm.passthrough = ["amdgpu-no-implicitarg-ptr"
  // CHECK-SAME: ["amdgpu-agpr-alloc", "0,0"]
  gpu.func @copies(%in: !spconv.buffer<bf16>, %index: i32) workgroup(%memory: memref<1024xbf16, #gpu.address_space<workgroup>>) kernel {
    %c64 = arith.constant 64 : i32
    // CHECK: %[[BASE:.+]] = memref.extract_aligned_pointer_as_index
    // CHECK: llvm.inttoptr %{{.+}} : i32 to !llvm.ptr<3>
    // CHECK: rocdl.raw.ptr.buffer.load.async.lds
    "spconv.tile_copy"(%in, %index, %memory, %c64) : (!spconv.buffer<bf16>, i32, memref<1024xbf16, #gpu.address_space<workgroup>>, i32) -> ()
    // CHECK: rocdl.asyncmark
    "spconv.tile_copy_group"() : () -> ()
    // CHECK: rocdl.wait.asyncmark 1
    "spconv.tile_copy_wait"() {newest = 1 : i64} : () -> ()
    gpu.return
  }

  // A number that a loop carries is the same in all lanes where it is at first and what follows it is: the second read is
  // a plain load, and the number goes to the scalar offset of the store. One that takes in a lane's number is not.
  // CHECK-LABEL: gpu.func @carried
  gpu.func @carried(%steps: !spconv.buffer<i32>, %out: !spconv.buffer<i32>, %n: i32) kernel attributes {known_block_size = array<i32: 64, 1, 1>} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %first = "spconv.tile_load"(%steps, %c0) : (!spconv.buffer<i32>, i32) -> i32
    %id = gpu.thread_id x
    %lane = arith.index_cast %id : index to i32
    // CHECK: scf.for {{.*}} iter_args(%[[SAME:.+]] = %{{.+}}, %[[OWN:.+]] = %{{.+}})
    %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%same = %first, %own = %lane) -> (i32, i32) : i32 {
      // CHECK: llvm.load
      %next = "spconv.tile_load"(%steps, %same) : (!spconv.buffer<i32>, i32) -> i32
      // CHECK: %[[SCALAR:.+]] = arith.muli %[[SAME]]
      // CHECK: rocdl.raw.ptr.buffer.store %{{.+}}, %{{.+}}, %{{.+}}, %[[SCALAR]], 0 : i32
      %at = arith.addi %lane, %same overflow<nuw> : i32
      "spconv.tile_store"(%next, %out, %at) : (i32, !spconv.buffer<i32>, i32) -> ()
      // CHECK: rocdl.raw.ptr.buffer.load
      %mine = "spconv.tile_load"(%steps, %own) : (!spconv.buffer<i32>, i32) -> i32
      scf.yield %next, %mine : i32, i32
    }
    gpu.return
  }
}
