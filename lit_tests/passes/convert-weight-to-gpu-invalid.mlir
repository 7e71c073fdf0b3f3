// RUN: %opt %s -p convert-weight-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-weight-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @no_schedule(%weight: tensor<64x3x3x3x64xbf16>) -> !spconv.packed<bf16> {
  // expected-error @below {{the op has no schedule}}
  // expected-note @below {{run choose-schedule first}}
  %0 = "spconv.pack_weight"(%weight) : (tensor<64x3x3x3x64xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}

// -----

func.func @for_cores(%weight: tensor<64x3x3x3x64xbf16>) -> !spconv.packed<bf16> {
  // expected-error @below {{schedule "row_panels" is not one for a GPU}}
  // expected-note @below {{accepted here: "mma_panels"}}
  %0 = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"row_panels", {}>} : (tensor<64x3x3x3x64xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}

// -----

func.func @missing(%weight: tensor<64x3x3x3x64xbf16>) -> !spconv.packed<bf16> {
  // expected-error @below {{schedule "mma_panels" lacks mma_n, chunk_k}}
  // expected-note @below {{it takes tile_n, mma_n, tile_k, chunk_k}}
  %0 = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 64, tile_k = 32}>} : (tensor<64x3x3x3x64xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}
