// RUN: not %opt %s -p convert-rows-to-gpu{target=x86-64-v3} 2>&1 | %filecheck %s

// CHECK: error: {{.*}}target x86-64-v3 is not a GPU
// CHECK: note: in pass convert-rows-to-gpu

func.func @fill(%coords: !spconv.coords<32>) -> tensor<?x16xf32> {
  %0 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
