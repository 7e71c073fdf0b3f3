// Level stages: the kernel map between two coordinate sets, its pairs, and what pools make of them.
irdl.dialect @spconv {
  irdl.operation @cross_map {
    %fine = irdl.base "!spconv.coords"
    %coarse = irdl.base "!spconv.coords"
    %map = irdl.base "!spconv.cross_map"
    %kernel_size = irdl.any
    %stride = irdl.any
    %padding = irdl.any
    %dilation = irdl.any
    irdl.operands(fine: %fine, coarse: %coarse)
    irdl.results(map: %map)
    irdl.attributes {"kernel_size" = %kernel_size, "stride" = %stride, "padding" = %padding, "dilation" = %dilation}
  }
  irdl.operation @cross_compact {
    %map = irdl.base "!spconv.cross_map"
    %pairs = irdl.base "!spconv.pairs"
    %transposed = irdl.any
    irdl.operands(map: %map)
    irdl.results(pairs: %pairs)
    irdl.attributes {"transposed" = %transposed}
  }
  irdl.operation @pool {
    %pairs = irdl.base "!spconv.pairs"
    %features = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    %mode = irdl.base "#builtin.string"
    irdl.operands(pairs: %pairs, features: %features)
    irdl.results(result: %result)
    irdl.attributes {"mode" = %mode}
  }
}
