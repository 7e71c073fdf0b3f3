// RUN: %opt %s -p lower-memory-to-global{target=sm_90} | %filecheck %s

gpu.module @kernels {
  // Unsigned indices are widened; what is only read says so, and a vector is aligned to its size.
  // CHECK-LABEL: gpu.func @plain(
  // CHECK-SAME: %arg0: !llvm.ptr<1> {llvm.align = 16 : i64, llvm.noalias, llvm.nonnull, llvm.noundef, llvm.readonly}
  // CHECK-SAME: %arg1: !llvm.ptr<1> {{.*}}llvm.writeonly}
  // CHECK-SAME: %arg2: i32)
  gpu.func @plain(%in: !spconv.buffer<bf16>, %out: !spconv.buffer<bf16>, %i: i32) kernel {
    // CHECK: [[I:%.+]] = arith.extui %arg2 : i32 to i64
    // CHECK: [[P:%.+]] = llvm.getelementptr %arg0{{\[}}[[I]]] : (!llvm.ptr<1>, i64) -> !llvm.ptr<1>, bf16
    // CHECK: [[V:%.+]] = llvm.load [[P]] {alignment = 16 : i64} : !llvm.ptr<1> -> vector<8xbf16>
    %v = "spconv.tile_load"(%in, %i) : (!spconv.buffer<bf16>, i32) -> vector<8xbf16>
    // CHECK: llvm.store [[V]], {{%.+}} {alignment = 16 : i64} : vector<8xbf16>, !llvm.ptr<1>
    "spconv.tile_store"(%v, %out, %i) : (vector<8xbf16>, !spconv.buffer<bf16>, i32) -> ()
    gpu.return
  }

  // Beyond the bound element 0 is read, and does not count; a write is skipped.
  // CHECK-LABEL: gpu.func @bounded(
  gpu.func @bounded(%in: !spconv.buffer<f32>, %n: i64, %i: i32) kernel {
    // CHECK-NOT: spconv.tile_bound
    // CHECK: [[I:%.+]] = arith.extui %arg2
    // CHECK: [[INSIDE:%.+]] = arith.cmpi ult, [[I]], %arg1 : i64
    // CHECK: [[AT:%.+]] = arith.select [[INSIDE]], [[I]], %{{.+}} : i64
    // CHECK: [[P:%.+]] = llvm.getelementptr %arg0{{\[}}[[AT]]]
    // CHECK: [[V:%.+]] = llvm.load [[P]] {alignment = 4 : i64} : !llvm.ptr<1> -> f32
    // CHECK: [[R:%.+]] = arith.select [[INSIDE]], [[V]], %{{.+}} : f32
    // CHECK: scf.if
    // CHECK: llvm.store [[R]]
    %b = "spconv.tile_bound"(%in, %n) : (!spconv.buffer<f32>, i64) -> !spconv.buffer<f32>
    %v = "spconv.tile_load"(%b, %i) : (!spconv.buffer<f32>, i32) -> f32
    "spconv.tile_store"(%v, %b, %i) : (f32, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }

  // CHECK-LABEL: gpu.func @between_workgroups(
  gpu.func @between_workgroups(%words: !spconv.buffer<i32>, %sums: !spconv.buffer<f32>, %i: i32, %x: f32) kernel {
    // CHECK: llvm.atomicrmw umin {{%.+}}, %arg2 syncscope("device") monotonic : !llvm.ptr<1>, i32
    "spconv.tile_atomic"(%i, %words, %i) {kind = "umin"} : (i32, !spconv.buffer<i32>, i32) -> ()
    // CHECK: llvm.atomicrmw fadd {{%.+}}, %arg3 syncscope("device") monotonic : !llvm.ptr<1>, f32
    "spconv.tile_atomic"(%x, %sums, %i) {kind = "fadd"} : (f32, !spconv.buffer<f32>, i32) -> ()
    // CHECK: [[OLD:%.+]] = llvm.atomicrmw add {{%.+}} syncscope("device") monotonic
    %old = "spconv.tile_fetch_add"(%i, %words, %i) : (i32, !spconv.buffer<i32>, i32) -> i32
    // CHECK: [[SEEN:%.+]] = llvm.load {{%.+}} atomic syncscope("device") monotonic {alignment = 4 : i64}
    %seen = "spconv.tile_load_device"(%words, %old) : (!spconv.buffer<i32>, i32) -> i32
    // CHECK: llvm.store [[SEEN]], {{%.+}} atomic syncscope("device") monotonic {alignment = 4 : i64}
    "spconv.tile_store_device"(%seen, %words, %i) : (i32, !spconv.buffer<i32>, i32) -> ()
    gpu.return
  }

  // A lane copies 16 bytes to its own place behind that of lane 0; beyond the bound none of them is read.
  // CHECK-LABEL: gpu.func @copies(
  gpu.func @copies(%in: !spconv.buffer<f32>, %n: i64, %i: i32) workgroup(%m: memref<512xf32, #gpu.address_space<workgroup>>) kernel {
    %b = "spconv.tile_bound"(%in, %n) : (!spconv.buffer<f32>, i64) -> !spconv.buffer<f32>
    // CHECK: [[SIZE:%.+]] = arith.select %{{.+}}, %c16_i32, %c0_i32
    // CHECK: memref.extract_aligned_pointer_as_index
    // CHECK: [[T:%.+]] = llvm.inttoptr %{{.+}} : i32 to !llvm.ptr<3>
    // CHECK: nvvm.cp.async.shared.global [[T]], %{{.+}}, 16, cache = cg, [[SIZE]]
    "spconv.tile_copy"(%b, %i, %m, %i) : (!spconv.buffer<f32>, i32, memref<512xf32, #gpu.address_space<workgroup>>, i32) -> ()
    // CHECK: nvvm.cp.async.commit.group
    "spconv.tile_copy_group"() : () -> ()
    // CHECK: nvvm.cp.async.wait.group 2
    "spconv.tile_copy_wait"() {newest = 2 : i64} : () -> ()
    gpu.return
  }

  // CHECK-LABEL: gpu.func @address(
  gpu.func @address(%in: !spconv.buffer<bf16>, %i: i64) kernel {
    // CHECK: [[P:%.+]] = llvm.getelementptr %arg0[%arg1] : (!llvm.ptr<1>, i64) -> !llvm.ptr<1>, bf16
    // CHECK: llvm.load [[P]]
    %p = "spconv.tile_address"(%in, %i) : (!spconv.buffer<bf16>, i64) -> !llvm.ptr<1>
    %v = llvm.load %p : !llvm.ptr<1> -> bf16
    llvm.store %v, %p : bf16, !llvm.ptr<1>
    gpu.return
  }
}
