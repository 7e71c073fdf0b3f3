// Level stages: a convolution taken apart. Every op may carry `schedule = #spconv.schedule<...>`, which the
// choose-schedule pass sets; IRDL cannot declare an optional attribute, so the verifiers in stages.py check it.
irdl.dialect @spconv {
  irdl.operation @map {
    %coords = irdl.base "!spconv.coords"
    %map = irdl.base "!spconv.map"
    %kernel_size = irdl.any
    %dilation = irdl.any
    irdl.operands(coords: %coords)
    irdl.results(map: %map)
    irdl.attributes {"kernel_size" = %kernel_size, "dilation" = %dilation}
  }
  irdl.operation @compact {
    %map = irdl.base "!spconv.map"
    %pairs = irdl.base "!spconv.pairs"
    irdl.operands(map: %map)
    irdl.results(pairs: %pairs)
  }
  irdl.operation @pack_weight {
    %weight = irdl.base "!builtin.tensor"
    %packed = irdl.base "!spconv.packed"
    irdl.operands(weight: %weight)
    irdl.results(packed: %packed)
  }
  irdl.operation @fill {
    %coords = irdl.base "!spconv.coords"
    %bias = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    irdl.operands(coords: %coords, bias: optional %bias)
    irdl.results(result: %result)
  }
  irdl.operation @gemm {
    %pairs = irdl.base "!spconv.pairs"
    %features = irdl.base "!builtin.tensor"
    %weight = irdl.base "!spconv.packed"
    %init = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    %residual = irdl.base "!builtin.tensor"
    %epilogue = irdl.base "#spconv.epilogue"
    irdl.operands(pairs: %pairs, features: %features, weight: %weight, init: %init, residual: optional %residual)
    irdl.results(result: %result)
    irdl.attributes {"epilogue" = %epilogue}
  }
  irdl.operation @apply_epilogue {
    %input = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    %residual = irdl.base "!builtin.tensor"
    %epilogue = irdl.base "#spconv.epilogue"
    irdl.operands(input: %input, residual: optional %residual)
    irdl.results(result: %result)
    irdl.attributes {"epilogue" = %epilogue}
  }
}
