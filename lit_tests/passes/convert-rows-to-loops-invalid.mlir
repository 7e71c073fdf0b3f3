// RUN: %opt %s -p convert-rows-to-loops{target=x86-64-v3} --verify-diagnostics

func.func @in_use(%coords: !spconv.coords<32>) -> tensor<?x16xf32> {
  // expected-error@+2 {{the rows have a use that is not a lowered gemm}}
  // expected-note@+1 {{supported: init of a spconv.gemm}}
  %0 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
