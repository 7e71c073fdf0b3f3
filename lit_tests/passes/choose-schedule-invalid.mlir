// RUN: %opt %s -p choose-schedule{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p choose-schedule{target=gfx1} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET
// RUN: not %opt %s -p 'choose-schedule{target=gfx950 schedule=fast}' --split-input-file 2>&1 | %filecheck %s --check-prefix=SCHEDULE
// RUN: not %opt %s -p 'choose-schedule{target=x86-64-v3 schedule=pairs_m16}' --split-input-file 2>&1 | %filecheck %s --check-prefix=WANTED

// A gemm that no schedule serves is refused, with every schedule's reason.

// TARGET: error: unknown target 'gfx1'; accepted: auto, cpu, gfx950, gfx950-sim, sm_90, x86-64-v4-amx, x86-64-v4-bf16, x86-64-v4, x86-64-v3
// SCHEDULE: error: unknown schedule 'fast'; accepted: auto, pairs_m16, small_channels, output_stationary, output_stationary_tall, split_taps, {{.*}}chunk_stationary
// WANTED: error: no schedule serves
// WANTED: note: schedule 'pairs_m16': it is for waves of a GPU, and x86-64-v3 has none
// WANTED-NOT: chunk_stationary

func.func @taps(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x9x9x9x16xbf16>) -> tensor<?x32xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 9, 9, 9>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<729>
  %pairs = "spconv.compact"(%map) : (!spconv.map<729>) -> !spconv.pairs<729>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x9x9x9x16xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x32xf32>
  // expected-error @below {{no schedule serves Problem(taps=729,}}
  // expected-note @below {{schedule 'pairs_m16': the kernel has 729 taps; at most 343 (7×7×7)}}
  // expected-note @below {{schedule 'small_channels': the kernel has 729 taps; at most 343 (7×7×7)}}
  // expected-note @below {{schedule 'output_stationary': the kernel has 729 taps; at most 343 (7×7×7)}}
  // expected-note @below {{schedule 'output_stationary_tall': the kernel has 729 taps; at most 343 (7×7×7)}}
  // expected-note @below {{schedule 'split_taps': the kernel has 729 taps; at most 343 (7×7×7)}}
  // expected-note @below {{schedule 'pair_major': the kernel has 729 taps; at most 343 (7×7×7)}}
  // expected-note @below {{schedule 'wgmma_rows': it is for warpgroups}}
  // expected-note @below {{schedule 'chunk_tiles': it is for processor cores}}
  // expected-note @below {{schedule 'chunk_stationary': it is for processor cores}}
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<729>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return %sum : tensor<?x32xf32>
}
