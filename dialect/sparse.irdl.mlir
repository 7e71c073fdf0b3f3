// Level spconv: convolutions and pools between two coordinate sets, and the set that such an op makes.
irdl.dialect @spconv {
  irdl.operation @output_coords {
    %coords = irdl.base "!spconv.coords"
    %result = irdl.base "!spconv.coords"
    %kernel_size = irdl.any
    %stride = irdl.any
    %padding = irdl.any
    %dilation = irdl.any
    %transposed = irdl.any
    irdl.operands(coords: %coords)
    irdl.results(result: %result)
    irdl.attributes {"kernel_size" = %kernel_size, "stride" = %stride, "padding" = %padding,
                     "dilation" = %dilation, "transposed" = %transposed}
  }
  irdl.operation @union_coords {
    %first = irdl.base "!spconv.coords"
    %second = irdl.base "!spconv.coords"
    %result = irdl.base "!spconv.coords"
    irdl.operands(first: %first, second: %second)
    irdl.results(result: %result)
  }
  irdl.operation @sparse_conv3d {
    %coords = irdl.base "!spconv.coords"
    %out_coords = irdl.base "!spconv.coords"
    %features = irdl.base "!builtin.tensor"
    %weight = irdl.base "!builtin.tensor"
    %bias = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    %stride = irdl.any
    %padding = irdl.any
    %dilation = irdl.any
    %transposed = irdl.any
    %epilogue = irdl.base "#spconv.epilogue"
    irdl.operands(coords: %coords, out_coords: %out_coords, features: %features, weight: %weight,
                  bias: optional %bias)
    irdl.results(result: %result)
    irdl.attributes {"stride" = %stride, "padding" = %padding, "dilation" = %dilation,
                     "transposed" = %transposed, "epilogue" = %epilogue}
  }
  irdl.operation @sparse_pool3d {
    %coords = irdl.base "!spconv.coords"
    %out_coords = irdl.base "!spconv.coords"
    %features = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    %kernel_size = irdl.any
    %stride = irdl.any
    %padding = irdl.any
    %dilation = irdl.any
    %mode = irdl.base "#builtin.string"
    irdl.operands(coords: %coords, out_coords: %out_coords, features: %features)
    irdl.results(result: %result)
    irdl.attributes {"kernel_size" = %kernel_size, "stride" = %stride, "padding" = %padding,
                     "dilation" = %dilation, "mode" = %mode}
  }
}
