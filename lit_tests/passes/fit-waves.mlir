// RUN: %opt %s -p fit-waves{target=sm_90} | %filecheck %s
// RUN: %opt %s -p fit-waves{target=gfx950} | %filecheck %s --check-prefix=WIDE
// RUN: not %opt %s -p fit-waves{target=x86-64-v3} 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

gpu.module @kernels {
  // CHECK-LABEL: gpu.func @votes(
  // WIDE-LABEL: gpu.func @votes(
  gpu.func @votes(%out: !spconv.buffer<i64>, %yes: i1, %i: i32) kernel {
    // CHECK: [[NARROW:%.+]] = gpu.ballot %arg1 : i32
    // CHECK: [[BITS:%.+]] = arith.extui [[NARROW]] : i32 to i64
    // CHECK: "spconv.tile_store"([[BITS]], %arg0, %arg2)
    // WIDE: [[ALL:%.+]] = gpu.ballot %arg1 : i64
    // WIDE: "spconv.tile_store"([[ALL]], %arg0, %arg2)
    %bits = gpu.ballot %yes : i64
    // CHECK-NOT: gpu.subgroup_broadcast
    %same = gpu.subgroup_broadcast %i, first_active_lane : i32
    "spconv.tile_store"(%bits, %out, %same) : (i64, !spconv.buffer<i64>, i32) -> ()
    gpu.return
  }
}
