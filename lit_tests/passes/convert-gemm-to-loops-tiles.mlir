// RUN: %compile %s --target x86-64-v4-amx --emit loops | %filecheck %s

// A worker gives the tile registers their shapes, multiplies, and gives them back before it writes a chunk's rows.

// CHECK: kernel = @kernels::@gemm_chunk_tiles_bf16_bf16_t27_20x24_r512_m16_n32_p2_k20
// CHECK: llvm.func internal @gemm_chunk_tiles_{{.*}}_worker
// CHECK: llvm.call_intrinsic "llvm.x86.ldtilecfg"
// A row of 20 channels is followed by zeros.
// CHECK: llvm.intr.masked.load
// CHECK-COUNT-2: llvm.call_intrinsic "llvm.x86.tileloadd64"
// CHECK-COUNT-2: llvm.call_intrinsic "llvm.x86.tilezero"
// CHECK: llvm.call_intrinsic "llvm.x86.tileloadd64"
// CHECK-COUNT-2: llvm.call_intrinsic "llvm.x86.tdpbf16ps"
// CHECK-COUNT-2: llvm.call_intrinsic "llvm.x86.tilestored64"
// CHECK: llvm.call_intrinsic "llvm.x86.tilerelease"
// CHECK: llvm.return
func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x20xbf16>, %weight: tensor<24x3x3x3x20xbf16>) -> tensor<?x24xbf16> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x20xbf16>, tensor<24x3x3x3x20xbf16>) -> tensor<?x24xbf16>
  return %0 : tensor<?x24xbf16>
}
