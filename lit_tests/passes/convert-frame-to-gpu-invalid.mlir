// RUN: %opt %s -p convert-frame-to-gpu{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p convert-frame-to-gpu{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

func.func @two(%coords: !spconv.coords<32>) {
  "spconv.place_coords"(%coords) : (!spconv.coords<32>) -> ()
  // expected-error @below {{a second op that places a frame}}
  // expected-note @below {{supported: one in a function}}
  "spconv.place_coords"(%coords) : (!spconv.coords<32>) -> ()
  return
}
