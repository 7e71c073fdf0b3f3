// RUN: %opt --list-passes | %filecheck %s --check-prefix=PASSES
// RUN: %opt --list-levels | %filecheck %s --check-prefix=LEVELS
// RUN: env SPCONV_LOG=loud %opt --help-env | %filecheck %s --check-prefix=ENV

// PASSES: check-level{level=spconv}
// PASSES-NEXT: any → same: Checks the rule of a level; changes nothing.
// PASSES: convert-spconv-to-stages
// PASSES-NEXT: spconv → stages: Takes convolutions apart into map, compact, pack_weight, fill, gemm and apply_epilogue.

// LEVELS: spconv{{ +}}functions of convolutions and pointwise ops on tensors; no kernels, no stages
// LEVELS: cpu{{ +}}a host plan, and functions of the llvm dialect only

// ENV: SPCONV_CACHE = off
// ENV: SPCONV_LOG = (bad value: SPCONV_LOG='loud' is not accepted; accepted: debug, info, warning, error)
