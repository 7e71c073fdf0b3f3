// RUN: %opt %s | %opt --generic | %opt | %filecheck %s

// CHECK-LABEL: func.func @frame
func.func @frame(%coords: !spconv.coords<32>) {
  // CHECK: "spconv.place_coords"(%{{[a-z0-9]+}}) : (!spconv.coords<32 : i64>) -> ()
  "spconv.place_coords"(%coords) : (!spconv.coords<32>) -> ()
  return
}
