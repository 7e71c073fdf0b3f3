// RUN: %opt %s -p 'choose-schedule{target=gfx950}' | %filecheck %s --check-prefixes=CHECK,MARKS
// RUN: %opt %s -p 'choose-schedule{target=gfx950 mapper=sorted_candidates}' | %filecheck %s --check-prefixes=CHECK,SORT
// RUN: %opt %s -p 'choose-schedule{target=gfx950 mapper=coarse_keys}' | %filecheck %s --check-prefixes=CHECK,MARKS
// RUN: not %opt %s -p 'choose-schedule{target=x86-64-v3 mapper=sorted_candidates}' 2>&1 | %filecheck %s --check-prefix=CORES

// Outputs are made by marks unless a sort is asked for; mappers of maps leave them as they are. Only GPUs have a choice.

// CORES: error: the mapper that is asked for does not serve
// CORES: note: schedule 'sorted_candidates': it makes sets of outputs on a GPU; here they are made by "sorted_keys"

// CHECK-LABEL: func.func @outputs
func.func @outputs(%coords: !spconv.coords<64>) -> !spconv.coords<64> {
  // CHECK: "spconv.output_coords"
  // MARKS-SAME: schedule = #spconv.schedule<"marked_cells", {block = 256 : i64}>
  // SORT-SAME: schedule = #spconv.schedule<"sorted_candidates", {block = 256 : i64, items = 4 : i64}>
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<64>) -> !spconv.coords<64>
  return %0 : !spconv.coords<64>
}
