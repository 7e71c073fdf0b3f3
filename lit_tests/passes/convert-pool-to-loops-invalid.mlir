// RUN: %opt %s -p convert-pool-to-loops{target=x86-64-v3} --split-input-file --verify-diagnostics

func.func @unscheduled(%pairs: !spconv.pairs<8>, %features: tensor<?x20xf32>) -> tensor<?x20xf32> {
  // expected-error@+2 {{the op has no schedule}}
  // expected-note@+1 {{run choose-schedule first}}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max"} : (!spconv.pairs<8>, tensor<?x20xf32>) -> tensor<?x20xf32>
  return %0 : tensor<?x20xf32>
}

// -----

func.func @of_a_gemm(%pairs: !spconv.pairs<8>, %features: tensor<?x20xf32>) -> tensor<?x20xf32> {
  // expected-error@+2 {{schedule "chunk_stationary" is not one for processors}}
  // expected-note@+1 {{accepted here: chunk_pool}}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max", schedule = #spconv.schedule<"chunk_stationary", {chunk_rows = 512 : i64}>} : (!spconv.pairs<8>, tensor<?x20xf32>) -> tensor<?x20xf32>
  return %0 : tensor<?x20xf32>
}
