// RUN: %opt %s | %opt | %filecheck %s

// Copies to workgroup memory survive a round trip.

gpu.module @kernels {
  // CHECK-LABEL: @k
  gpu.func @k(%in: !spconv.buffer<bf16>, %index: i32, %place: i32) workgroup(%memory: memref<1024xbf16, #gpu.address_space<workgroup>>) kernel {
    // CHECK: "spconv.tile_copy"(%{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}) : (!spconv.buffer<bf16>, i32, memref<1024xbf16, #gpu.address_space<workgroup>>, i32) -> ()
    "spconv.tile_copy"(%in, %index, %memory, %place) : (!spconv.buffer<bf16>, i32, memref<1024xbf16, #gpu.address_space<workgroup>>, i32) -> ()
    // CHECK: "spconv.tile_copy_group"() : () -> ()
    "spconv.tile_copy_group"() : () -> ()
    // CHECK: "spconv.tile_copy_wait"() {newest = 1 : i64} : () -> ()
    "spconv.tile_copy_wait"() {newest = 1 : i64} : () -> ()
    gpu.return
  }
}
