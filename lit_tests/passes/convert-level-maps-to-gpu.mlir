// RUN: %opt %s -p convert-level-maps-to-gpu{target=gfx950},convert-host-to-plan --split-input-file | %filecheck %s

// Two made levels and four maps: nine launches, as for any number of them.

// CHECK-LABEL: func.func @levels
// CHECK-SAME: message = "bytes of the tables of all maps"
func.func @levels(%coords: !spconv.coords<32> {spconv.name = "coords"}, %places: tensor<?xi32> {spconv.name = "places"}) {
  // CHECK: "spconv.alloc"() {name = "sorted_table"
  // CHECK: group = "map", kernel = @kernels::@clear_levels_3_4_[[NAME:[0-9a-f]+]]}
  // CHECK: group = "map", kernel = @kernels::@mark_levels_3_4_[[NAME]]}
  // CHECK: group = "map", kernel = @kernels::@rank_levels_3_4_[[NAME]]}
  // CHECK: group = "map", kernel = @kernels::@rows_of_ranks_3_4_[[NAME]]}
  // CHECK: group = "map", kernel = @kernels::@look_up_maps_3_4_[[NAME]]}
  // CHECK-COUNT-3: group = "map", kernel = @kernels::@sort_maps_3_4_[[NAME]]}
  // CHECK: group = "map", kernel = @kernels::@arrange_maps_3_4_[[NAME]]}
  // CHECK-NOT: "spconv.launch"
  // CHECK: return
  "spconv.level_maps"(%coords, %places) {
    levels = [array<i64: 0, 3, 3, 3, 2, 2, 2, 1, 1, 1>, array<i64: 1, 3, 1, 1, 2, 1, 1, 0, 0, 0>],
    maps = [array<i64: 0, 0, 0, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1>, array<i64: 0, 1, 0, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1>,
            array<i64: 1, 2, 0, 3, 1, 1, 2, 1, 1, 0, 0, 0, 1, 1, 1>, array<i64: 1, 0, 1, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1>]
  } : (!spconv.coords<32>, tensor<?xi32>) -> ()
  return
}

// A voxel marks every level in loops over what it reaches along z, y and x.
// CHECK: gpu.func @mark_levels
// CHECK-COUNT-9: scf.for
// CHECK-NOT: scf.for
// CHECK: gpu.return

// Nine neighbours at a time: their marks are all loaded before the first is used.
// CHECK: gpu.func @look_up_maps
// CHECK-COUNT-9: "spconv.tile_load"({{.+}}) : (!spconv.buffer<i32>, i32) -> vector<2xi32>
// CHECK: math.ctpop
