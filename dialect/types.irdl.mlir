// The types and attributes of the spconv dialect. Python views of them are in types.py.
irdl.dialect @spconv {
  // A set of active voxels: int32 rows (batch, z, y, x). key_width: bits of a packed coordinate, 32 or 64.
  irdl.type @coords {
    %bits = irdl.base "#builtin.integer"
    irdl.parameters(key_width: %bits)
  }
  // For each row and tap the row of its neighbour, if any. How it is stored is the target's choice.
  irdl.type @map {
    %count = irdl.base "#builtin.integer"
    irdl.parameters(taps: %count)
  }
  // For each row of the coarser of two coordinate sets and each tap the row of the finer one, if any.
  irdl.type @cross_map {
    %count = irdl.base "#builtin.integer"
    irdl.parameters(taps: %count)
  }
  // The present (tap, input row, output row) triples of a map, ordered for a gemm schedule.
  irdl.type @pairs {
    %count = irdl.base "#builtin.integer"
    irdl.parameters(taps: %count)
  }
  // Weights in the layout that a gemm schedule reads.
  irdl.type @packed {
    %element = irdl.any
    irdl.parameters(element: %element)
  }
  // A flat array in device memory.
  irdl.type @buffer {
    %element = irdl.any
    irdl.parameters(element: %element)
  }
  // A kernel argument of any type (plan.irdl.mlir says why).
  irdl.type @argument
  // A schedule: its name and its parameters (schedules/).
  irdl.attribute @schedule {
    %name = irdl.base "#builtin.string"
    %parameters = irdl.base "#builtin.dictionary"
    irdl.parameters(name: %name, parameters: %parameters)
  }
  // What happens to a finished output row after bias and residual: an activation by name, such as "relu", or with a
  // parameter: {activation = "leaky_relu", negative_slope = 0.1 : f32}.
  irdl.attribute @epilogue {
    %name = irdl.base "#builtin.string"
    %with_parameter = irdl.base "#builtin.dictionary"
    %activation = irdl.any_of(%name, %with_parameter)
    irdl.parameters(activation: %activation)
  }
}
