// RUN: %compile --target sm_90 --emit=isa %s | %filecheck %s
// RUN: %compile --target sm_90 --emit=isa %s | %filecheck %s --check-prefix=NONE

// The gemm of schedule wgmma_rows at 128 → 128 channels: rows by 16-byte copies with zero fill, weights by one bulk copy
// a step, both completing on a barrier; four matrix instructions a step with one group left in flight. No atomics on
// global memory, no local memory, no calls.

func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x128xbf16>, %weight: tensor<128x3x3x3x128xbf16>) -> tensor<?x128xbf16> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<32>, tensor<?x128xbf16>, tensor<128x3x3x3x128xbf16>) -> tensor<?x128xbf16>
  return %0 : tensor<?x128xbf16>
}

// CHECK: .target sm_90a
// CHECK-LABEL: .visible .entry gemm_wgmma_rows_bf16_t27_128x128_n128_k64_g2_s4_b1_relu_bf16(
// CHECK: .maxntid 384
// Nothing is touched before all work in front of the launch is done, and the next one may come then.
// CHECK: griddepcontrol.wait
// CHECK: griddepcontrol.launch_dependents
// CHECK-COUNT-8: mbarrier.init.shared
// The warpgroups that multiply:
// CHECK: fence.proxy.async.shared::cta
// CHECK: wgmma.fence.sync.aligned
// CHECK-COUNT-4: wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
// CHECK: wgmma.commit_group.sync.aligned
// CHECK: wgmma.wait_group.sync.aligned {{.*}}1
// CHECK: st.global.b32
// The one that gathers:
// CHECK: cp.async.mbarrier.arrive.noinc
// CHECK: mbarrier.arrive.expect_tx
// CHECK: cp.async.bulk.shared::cluster.global
// CHECK-COUNT-8: cp.async.cg.shared.global

// NONE-NOT: call
// NONE-NOT: .local
// NONE-LABEL: .visible .entry gemm_wgmma_rows
// NONE-NOT: atom.relaxed
// NONE-NOT: red.relaxed
// NONE-NOT: .local
