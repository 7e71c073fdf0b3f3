// RUN: not %opt %s -p nonsense,cse,more{x=1} 2>&1 | %filecheck %s --check-prefix=PASS
// RUN: not %opt %s -p 'check-level{depth=3}' 2>&1 | %filecheck %s --check-prefix=OPTION
// RUN: not %opt %s --to-level loops --target gfx950 2>&1 | %filecheck %s --check-prefix=PATH

// Wrong usage says what was found and what is accepted, without a look at the input (tests/test_opt.py has the rest).

// PASS: spconv-opt: error: unknown passes: nonsense, more{x=1}; accepted: check-level, choose-schedule,
// OPTION: spconv-opt: error: pass check-level has no option 'depth=3'; accepted: level=…
// PATH: spconv-opt: error: no way from level spconv to loops on gfx950; its levels: spconv → stages → gpu → rocdl
this is no MLIR
