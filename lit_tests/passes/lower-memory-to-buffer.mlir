// RUN: %opt %s -p lower-memory-to-buffer{target=gfx950},canonicalize,cse | %filecheck %s

// Buffers become global pointers that do not overlap; what a kernel only reads or only writes is said.

gpu.module @kernels {
  // CHECK-LABEL: gpu.func @copy
  // CHECK-SAME: %arg0: !llvm.ptr<1> {llvm.align = 16 : i64, llvm.noalias, llvm.nonnull, llvm.noundef, llvm.readonly}
  // CHECK-SAME: %arg1: !llvm.ptr<1> {{{.*}}llvm.writeonly}
  // CHECK-SAME: %arg2: i32
  gpu.func @copy(%in: !spconv.buffer<bf16>, %out: !spconv.buffer<bf16>, %unused: i32) kernel {
    // CHECK-DAG: [[IN:%.+]] = rocdl.make.buffer.rsrc %arg0, {{.+}}, %c4294967295_i64, %c159744_i32
    // CHECK-DAG: [[OUT:%.+]] = rocdl.make.buffer.rsrc %arg1, {{.+}}, %c4294967295_i64, %c159744_i32
    %thread = gpu.thread_id x
    %i = arith.index_castui %thread : index to i32
    // CHECK: [[OFFSET:%.+]] = arith.muli {{.+}}, %c2_i32 overflow<nuw>
    // CHECK: [[VALUE:%.+]] = rocdl.raw.ptr.buffer.load [[IN]], [[OFFSET]], %c0_i32, 0 : vector<8xbf16>
    %v = "spconv.tile_load"(%in, %i) : (!spconv.buffer<bf16>, i32) -> vector<8xbf16>
    // CHECK: rocdl.raw.ptr.buffer.store [[VALUE]], [[OUT]], [[OFFSET]], %c0_i32, 0 : vector<8xbf16>
    "spconv.tile_store"(%v, %out, %i) : (vector<8xbf16>, !spconv.buffer<bf16>, i32) -> ()
    gpu.return
  }

  // What all lanes share goes to the scalar offset, and so does a constant beyond the instruction's 12 bits:
  // 1100 elements are 4400 bytes, 304 of them in the instruction.
  // CHECK-LABEL: gpu.func @split
  gpu.func @split(%in: !spconv.buffer<f32>, %out: !spconv.buffer<f32>, %n: i32) kernel {
    %thread = gpu.thread_id x
    // CHECK: [[LANE:%.+]] = arith.index_castui
    %lane = arith.index_castui %thread : index to i32
    %c1100 = arith.constant 1100 : i32
    %0 = arith.addi %n, %c1100 overflow<nuw> : i32
    %1 = arith.addi %lane, %0 overflow<nuw> : i32
    // CHECK: [[BYTES:%.+]] = arith.muli [[LANE]], %c4_i32 overflow<nuw>
    // CHECK: [[SHARED:%.+]] = arith.muli %arg2, %c4_i32 overflow<nuw>
    // CHECK: [[VECTOR:%.+]] = arith.addi [[BYTES]], %c304_i32 overflow<nuw>
    // CHECK: [[SCALAR:%.+]] = arith.addi [[SHARED]], %c4096_i32 overflow<nuw>
    // CHECK: rocdl.raw.ptr.buffer.load {{%.+}}, [[VECTOR]], [[SCALAR]], 0 : f32
    %v = "spconv.tile_load"(%in, %1) : (!spconv.buffer<f32>, i32) -> f32
    "spconv.tile_store"(%v, %out, %lane) : (f32, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }

  // A sum that may wrap is not taken apart: the hardware adds without wrapping.
  // CHECK-LABEL: gpu.func @may_wrap
  gpu.func @may_wrap(%in: !spconv.buffer<f32>, %out: !spconv.buffer<f32>, %n: i32) kernel {
    %thread = gpu.thread_id x
    %lane = arith.index_castui %thread : index to i32
    // CHECK: [[SUM:%.+]] = arith.addi {{%.+}}, %arg2 : i32
    // CHECK: [[BYTES:%.+]] = arith.muli [[SUM]], %c4_i32
    // CHECK: rocdl.raw.ptr.buffer.load {{%.+}}, [[BYTES]], %c0_i32, 0
    %0 = arith.addi %lane, %n : i32
    %v = "spconv.tile_load"(%in, %0) : (!spconv.buffer<f32>, i32) -> f32
    "spconv.tile_store"(%v, %out, %lane) : (f32, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }

  // A read that all lanes share, from what the kernel only reads, is a plain load; what comes of it is shared too.
  // CHECK-LABEL: gpu.func @shared_read
  gpu.func @shared_read(%count: !spconv.buffer<i32>, %out: !spconv.buffer<i32>) kernel {
    %block = gpu.block_id x
    %i = arith.index_castui %block : index to i32
    // CHECK: [[COUNT:%.+]] = llvm.load {{%.+}} {alignment = 4 : i64} : !llvm.ptr<1> -> i32
    %n = "spconv.tile_load"(%count, %i) : (!spconv.buffer<i32>, i32) -> i32
    %thread = gpu.thread_id x
    %lane = arith.index_castui %thread : index to i32
    %at = arith.addi %lane, %n overflow<nuw> : i32
    // CHECK: [[SCALAR:%.+]] = arith.muli [[COUNT]], %c4_i32
    // CHECK: rocdl.raw.ptr.buffer.store {{.+}}, [[SCALAR]], 0
    "spconv.tile_store"(%lane, %out, %at) : (i32, !spconv.buffer<i32>, i32) -> ()
    // What the kernel writes is not read that way.
    // CHECK: rocdl.raw.ptr.buffer.load
    %m = "spconv.tile_load"(%out, %i) : (!spconv.buffer<i32>, i32) -> i32
    "spconv.tile_store"(%m, %out, %lane) : (i32, !spconv.buffer<i32>, i32) -> ()
    gpu.return
  }

  // A bound is the size of the resource, and its whole index is in the offset that the hardware checks.
  // CHECK-LABEL: gpu.func @bound
  gpu.func @bound(%in: !spconv.buffer<bf16>, %out: !spconv.buffer<bf16>, %n: i64, %m: i32) kernel {
    // CHECK: [[SIZE:%.+]] = arith.muli %arg2, %c2_i64
    // CHECK: [[GUARDED:%.+]] = rocdl.make.buffer.rsrc %arg0, {{.+}}, [[SIZE]], %c159744_i32
    %b = "spconv.tile_bound"(%in, %n) : (!spconv.buffer<bf16>, i64) -> !spconv.buffer<bf16>
    %thread = gpu.thread_id x
    %lane = arith.index_castui %thread : index to i32
    %at = arith.addi %lane, %m overflow<nuw> : i32
    // CHECK: rocdl.raw.ptr.buffer.load [[GUARDED]], {{%.+}}, %c0_i32, 0 : bf16
    %v = "spconv.tile_load"(%b, %at) : (!spconv.buffer<bf16>, i32) -> bf16
    "spconv.tile_store"(%v, %out, %lane) : (bf16, !spconv.buffer<bf16>, i32) -> ()
    gpu.return
  }

  // CHECK-LABEL: gpu.func @atomics
  gpu.func @atomics(%sums: !spconv.buffer<f32>, %grid: !spconv.buffer<i32>, %x: f32, %r: i32, %i: i32, %w: i64) kernel {
    // CHECK: rocdl.raw.ptr.buffer.atomic.fadd %arg2
    "spconv.tile_atomic"(%x, %sums, %i) {kind = "fadd"} : (f32, !spconv.buffer<f32>, i32) -> ()
    // CHECK: rocdl.raw.ptr.buffer.atomic.umin %arg3
    "spconv.tile_atomic"(%r, %grid, %i) {kind = "umin"} : (i32, !spconv.buffer<i32>, i32) -> ()
    // The buffer instructions have no integer add here; global memory has.
    // CHECK: llvm.atomicrmw add {{%.+}}, %arg3 syncscope("agent") monotonic
    "spconv.tile_atomic"(%r, %grid, %i) {kind = "add"} : (i32, !spconv.buffer<i32>, i32) -> ()
    // CHECK: llvm.atomicrmw _or {{%.+}}, %arg3 syncscope("agent") monotonic
    "spconv.tile_atomic"(%r, %grid, %i) {kind = "or"} : (i32, !spconv.buffer<i32>, i32) -> ()
    // 64-bit indices are global addresses. A float atomic needs three promises to be one instruction.
    // CHECK: llvm.atomicrmw fadd {{%.+}}, %arg2 syncscope("agent") monotonic {{.*}}rocdl.ignore_denormal_mode, rocdl.no_fine_grained_memory, rocdl.no_remote_memory
    "spconv.tile_atomic"(%x, %sums, %w) {kind = "fadd"} : (f32, !spconv.buffer<f32>, i64) -> ()
    // CHECK: llvm.atomicrmw umin
    "spconv.tile_atomic"(%r, %grid, %w) {kind = "umin"} : (i32, !spconv.buffer<i32>, i64) -> ()
    gpu.return
  }

  // What workgroups tell each other moves in atomic words of device scope, and is never taken for constant.
  // CHECK-LABEL: gpu.func @between_workgroups(%arg0: !llvm.ptr<1> {
  // CHECK-NOT: llvm.readonly
  gpu.func @between_workgroups(%words: !spconv.buffer<i32>, %out: !spconv.buffer<i32>, %i: i32) kernel {
    // CHECK: llvm.atomicrmw add {{%.+}}, %arg2 syncscope("agent") monotonic
    %old = "spconv.tile_fetch_add"(%i, %words, %i) : (i32, !spconv.buffer<i32>, i32) -> i32
    // CHECK: llvm.load {{%.+}} atomic syncscope("agent") monotonic {alignment = 4 : i64}
    %word = "spconv.tile_load_device"(%words, %old) : (!spconv.buffer<i32>, i32) -> i32
    // CHECK: llvm.store {{%.+}} atomic syncscope("agent") monotonic {alignment = 4 : i64}
    "spconv.tile_store_device"(%word, %out, %i) : (i32, !spconv.buffer<i32>, i32) -> ()
    gpu.return
  }

  // CHECK-LABEL: gpu.func @wide
  gpu.func @wide(%in: !spconv.buffer<i32>, %out: !spconv.buffer<i32>, %w: i64) kernel {
    // CHECK-NOT: rocdl
    // CHECK: llvm.getelementptr %arg0[%arg2] : (!llvm.ptr<1>, i64) -> !llvm.ptr<1>, i32
    // CHECK: llvm.load {{%.+}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xi32>
    %v = "spconv.tile_load"(%in, %w) : (!spconv.buffer<i32>, i64) -> vector<4xi32>
    // CHECK: llvm.store {{%.+}}, {{%.+}} {alignment = 16 : i64}
    "spconv.tile_store"(%v, %out, %w) : (vector<4xi32>, !spconv.buffer<i32>, i64) -> ()
    gpu.return
  }
}
