// RUN: %opt %s -p convert-cross-compact-to-loops{target=x86-64-v3} --split-input-file --verify-diagnostics

func.func @unscheduled(%map: !spconv.cross_map<8>) -> !spconv.pairs<8> {
  // expected-error@+2 {{the op has no schedule}}
  // expected-note@+1 {{run choose-schedule first}}
  %0 = "spconv.cross_compact"(%map) {transposed = false} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  return %0 : !spconv.pairs<8>
}

// -----

func.func @of_a_gpu(%map: !spconv.cross_map<8>) -> !spconv.pairs<8> {
  // expected-error@+2 {{schedule "tap_tile_row" is not one for processors}}
  // expected-note@+1 {{accepted here: chunk_tap_row}}
  %0 = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16 : i64}>} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  return %0 : !spconv.pairs<8>
}

// -----

func.func @without_chunk(%map: !spconv.cross_map<8>) -> !spconv.pairs<8> {
  // expected-error@+2 {{schedule "chunk_tap_row" lacks chunk_rows}}
  // expected-note@+1 {{it takes chunk_rows}}
  %0 = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"chunk_tap_row", {}>} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  return %0 : !spconv.pairs<8>
}
