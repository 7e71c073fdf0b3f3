// RUN: not %opt %s -p convert-weight-to-loops{target=gfx950} 2>&1 | %filecheck %s

// CHECK: error: {{.*}}target gfx950 is not a processor
// CHECK: note: in pass convert-weight-to-loops

func.func @weight(%weight: tensor<16x1x1x1x16xbf16>) -> !spconv.packed<bf16> {
  %0 = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"row_panels", {pair_k = 1 : i64, tile_n = 16 : i64}>} : (tensor<16x1x1x1x16xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}
