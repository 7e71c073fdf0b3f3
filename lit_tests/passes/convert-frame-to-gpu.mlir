// RUN: %opt %s -p convert-frame-to-gpu{target=gfx950},convert-host-to-plan --split-input-file | %filecheck %s

// One launch: rows are copied, counted and checked, and what is left over lies nowhere.

// CHECK-LABEL: func.func @frame
// CHECK-SAME: message = "bytes of coordinates"
func.func @frame(%coords: !spconv.coords<32> {spconv.name = "coords"}) {
  // CHECK: "spconv.alloc"() {name = "placed"
  // CHECK: "spconv.alloc"() {name = "placed_count"
  // CHECK: "spconv.alloc"() {name = "outside"
  // CHECK: group = "coords", kernel = @kernels::@place_rows_b256}
  // CHECK-NOT: "spconv.launch"
  // CHECK: return
  "spconv.place_coords"(%coords) : (!spconv.coords<32>) -> ()
  return
}

// A word is added to only by waves that have a coordinate outside.
// CHECK: gpu.func @place_rows_b256
// CHECK: gpu.ballot
// CHECK: math.ctpop
// CHECK: scf.if
// CHECK: "spconv.tile_atomic"

// -----

// Where they are is read from memory: no number of the launch says how many rows there are.

// CHECK-LABEL: func.func @frame_by_words
func.func @frame_by_words(%coords: !spconv.coords<32> {spconv.name = "coords"}, %frame: tensor<?xi32> {spconv.name = "frame"}) {
  // CHECK-NOT: name = "rows"
  // CHECK: group = "coords", kernel = @kernels::@place_rows_by_words_b256}
  // CHECK: return
  "spconv.place_coords"(%coords, %frame) : (!spconv.coords<32>, tensor<?xi32>) -> ()
  return
}

// CHECK: gpu.func @place_rows_by_words_b256
// CHECK: "spconv.tile_load"(%{{[a-z0-9]+}}, %{{[a-z0-9_]+}}) : (!spconv.buffer<i32>, i32) -> vector<4xi32>
// CHECK-COUNT-4: "spconv.tile_load"(%{{[a-z0-9]+}}, %{{[a-z0-9_]+}}) : (!spconv.buffer<i32>, i64) -> vector<4xi32>
