// Level spconv: what networks have around their convolutions. The parameters of a module are values too.
irdl.dialect @spconv {
  irdl.operation @parameter {
    %result = irdl.base "!builtin.tensor"
    %name = irdl.base "#builtin.string"
    irdl.operands()
    irdl.results(result: %result)
    irdl.attributes {"name" = %name}
  }
  irdl.operation @pointwise {
    %input = irdl.base "!builtin.tensor"
    %residual = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    %epilogue = irdl.base "#spconv.epilogue"
    irdl.operands(input: %input, residual: optional %residual)
    irdl.results(result: %result)
    irdl.attributes {"epilogue" = %epilogue}
  }
  irdl.operation @concat {
    %first = irdl.base "!builtin.tensor"
    %second = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    irdl.operands(first: %first, second: %second)
    irdl.results(result: %result)
  }
  irdl.operation @affine {
    %input = irdl.base "!builtin.tensor"
    %scale = irdl.base "!builtin.tensor"
    %shift = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    irdl.operands(input: %input, scale: %scale, shift: %shift)
    irdl.results(result: %result)
  }
  irdl.operation @norm_scale {
    %gamma = irdl.base "!builtin.tensor"
    %variance = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    %epsilon = irdl.base "#builtin.float"
    irdl.operands(variance: %variance, gamma: optional %gamma)
    irdl.results(result: %result)
    irdl.attributes {"epsilon" = %epsilon}
  }
  irdl.operation @norm_shift {
    %scale = irdl.base "!builtin.tensor"
    %mean = irdl.base "!builtin.tensor"
    %beta = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    irdl.operands(scale: %scale, mean: %mean, beta: optional %beta)
    irdl.results(result: %result)
  }
  irdl.operation @scale_weight {
    %weight = irdl.base "!builtin.tensor"
    %scale = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    irdl.operands(weight: %weight, scale: %scale)
    irdl.results(result: %result)
  }
  irdl.operation @scale_bias {
    %scale = irdl.base "!builtin.tensor"
    %shift = irdl.base "!builtin.tensor"
    %bias = irdl.base "!builtin.tensor"
    %result = irdl.base "!builtin.tensor"
    irdl.operands(scale: %scale, shift: %shift, bias: optional %bias)
    irdl.results(result: %result)
  }
}
