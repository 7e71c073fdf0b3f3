// Level gpu: copies from buffers to memory that a workgroup shares, under way while the wave goes on.
irdl.dialect @spconv {
  irdl.operation @tile_copy {
    %buffer = irdl.base "!spconv.buffer"
    %index = irdl.is i32
    %memory = irdl.base "!builtin.memref"
    %place = irdl.is i32
    irdl.operands(buffer: %buffer, index: %index, memory: %memory, place: %place)
    irdl.results()
  }
  irdl.operation @tile_copy_group {
    irdl.operands()
    irdl.results()
  }
  irdl.operation @tile_copy_wait {
    %newest = irdl.base "#builtin.integer"
    irdl.operands()
    irdl.results()
    irdl.attributes {"newest" = %newest}
  }
}
