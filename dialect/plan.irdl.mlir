// The host side from level gpu on: which buffers exist, how large they are, which kernels run in what order.
// A size or grid is an affine_map<()[rows, cells, threads] -> (count)> over the symbols of plan.py.
irdl.dialect @spconv {
  irdl.operation @symbol {
    %name = irdl.base "#builtin.string"
    %value = irdl.any
    irdl.operands()
    irdl.results(value: %value)
    irdl.attributes {"name" = %name}
  }
  irdl.operation @alloc {
    %name = irdl.base "#builtin.string"
    %size = irdl.any
    %buffer = irdl.base "!spconv.buffer"
    irdl.operands()
    irdl.results(buffer: %buffer)
    irdl.attributes {"name" = %name, "size" = %size}
  }
  // IRDL gives all elements of a variadic operand one type, so a launch takes its arguments type-erased.
  irdl.operation @argument {
    %value = irdl.any
    %argument = irdl.base "!spconv.argument"
    irdl.operands(value: %value)
    irdl.results(argument: %argument)
  }
  irdl.operation @launch {
    %kernel = irdl.any
    %grid = irdl.any
    %argument = irdl.base "!spconv.argument"
    irdl.operands(arguments: variadic %argument)
    irdl.results()
    irdl.attributes {"kernel" = %kernel, "grid" = %grid}
  }
}
