// RUN: %opt %s --split-input-file --verify-diagnostics

func.func @f(%coords: tensor<?x4xi32>) {
  // expected-error @below {{expected base type 'spconv.coords' but got 'builtin.tensor'}}
  "spconv.place_coords"(%coords) : (tensor<?x4xi32>) -> ()
  return
}
