// Level spconv: whole convolutions on tensors.
irdl.dialect @spconv {
  irdl.operation @subm_conv3d {
    %coords = irdl.base "!spconv.coords"
    %features = irdl.base "!builtin.tensor"
    %weight = irdl.base "!builtin.tensor"
    %bias = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    %dilation = irdl.any
    %epilogue = irdl.base "#spconv.epilogue"
    irdl.operands(coords: %coords, features: %features, weight: %weight, bias: optional %bias)
    irdl.results(result: %result)
    irdl.attributes {"dilation" = %dilation, "epilogue" = %epilogue}
  }
}
