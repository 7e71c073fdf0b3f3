// RUN: %opt %s -p convert-gemm-to-loops{target=x86-64-v3} --split-input-file --verify-diagnostics

func.func @foreign_init(%pairs: !spconv.pairs<27>, %features: tensor<?x16xf32>, %packed: !spconv.packed<f32>, %init: tensor<?x16xf32>) -> tensor<?x16xf32> {
  // expected-error@+2 {{init is not the result of spconv.fill}}
  // expected-note@+1 {{a gemm adds into rows of its own}}
  %0 = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"chunk_stationary", {chunk_rows = 512 : i64, pair_k = 1 : i64, tile_m = 6 : i64, tile_n = 16 : i64, unroll_k = 4 : i64}>} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}

// -----

func.func @of_a_gpu(%coords: !spconv.coords<32>, %pairs: !spconv.pairs<27>, %features: tensor<?x16xf32>, %packed: !spconv.packed<f32>) -> tensor<?x16xf32> {
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  // expected-error@+2 {{schedule "pairs_m16" is not one for processors}}
  // expected-note@+1 {{accepted here: chunk_stationary}}
  %0 = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"pairs_m16", {tile_m = 16 : i64}>} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}

// -----

func.func @without_tiles(%coords: !spconv.coords<32>, %pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %packed: !spconv.packed<bf16>) -> tensor<?x16xf32> {
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  // expected-error@+2 {{schedule "chunk_tiles" needs tile registers}}
  // expected-note@+1 {{x86-64-v3 has none}}
  %0 = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"chunk_tiles", {chunk_rows = 512 : i64, pair_k = 2 : i64, tile_k = 16 : i64, tile_m = 16 : i64, tile_n = 16 : i64}>} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
