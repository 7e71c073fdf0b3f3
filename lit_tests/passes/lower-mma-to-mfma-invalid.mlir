// RUN: %opt %s -p lower-mma-to-mfma{target=gfx950} --split-input-file --verify-diagnostics
// RUN: not %opt %s -p lower-mma-to-mfma{target=x86-64-v3} --split-input-file 2>&1 | %filecheck %s --check-prefix=TARGET

// TARGET: error: {{.*}}target x86-64-v3 is not a GPU

gpu.module @kernels {
  gpu.func @shape(%a: vector<8xbf16>, %c: vector<16xf32>) kernel {
    // expected-error @below {{no matrix instruction 32x32x16 of bf16}}
    // expected-note @below {{supported: 16x16x32 bf16, 16x16x32 f16, 16x16x4 f32}}
    %d = "spconv.tile_mma"(%a, %a, %c) {shape = array<i64: 32, 32, 16>} : (vector<8xbf16>, vector<8xbf16>, vector<16xf32>) -> vector<16xf32>
    gpu.return
  }
}

// -----

gpu.module @kernels {
  gpu.func @element(%a: vector<8xi8>, %c: vector<4xi32>) kernel {
    // expected-error @below {{no matrix instruction 16x16x32 of i8}}
    // expected-note @below {{supported: 16x16x32 bf16}}
    %d = "spconv.tile_mma"(%a, %a, %c) {shape = array<i64: 16, 16, 32>} : (vector<8xi8>, vector<8xi8>, vector<4xi32>) -> vector<4xi32>
    gpu.return
  }
}

// -----

gpu.module @kernels {
  gpu.func @fragment(%a: vector<4xbf16>, %c: vector<4xf32>) kernel {
    // expected-error @below {{fragments of (4, 4) elements a lane; rocdl.mfma.f32.16x16x32.bf16 takes (8, 4)}}
    %d = "spconv.tile_mma"(%a, %a, %c) {shape = array<i64: 16, 16, 32>} : (vector<4xbf16>, vector<4xbf16>, vector<4xf32>) -> vector<4xf32>
    gpu.return
  }
}
