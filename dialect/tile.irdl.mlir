// Level gpu: what a kernel does that the upstream dialects cannot say without naming a target.
// Indices count elements of the buffer; an i32 index promises that the byte offset is below 2^32.
irdl.dialect @spconv {
  irdl.operation @tile_bound {
    %buffer = irdl.base "!spconv.buffer"
    %result = irdl.base "!spconv.buffer"
    %i64 = irdl.is i64
    irdl.operands(buffer: %buffer, elements: %i64)
    irdl.results(result: %result)
  }
  irdl.operation @tile_address {
    %buffer = irdl.base "!spconv.buffer"
    %i64 = irdl.is i64
    %address = irdl.any
    irdl.operands(buffer: %buffer, index: %i64)
    irdl.results(address: %address)
  }
  irdl.operation @tile_load {
    %buffer = irdl.base "!spconv.buffer"
    %i32 = irdl.is i32
    %i64 = irdl.is i64
    %index = irdl.any_of(%i32, %i64)
    %value = irdl.any
    irdl.operands(buffer: %buffer, index: %index)
    irdl.results(value: %value)
  }
  irdl.operation @tile_store {
    %value = irdl.any
    %buffer = irdl.base "!spconv.buffer"
    %i32 = irdl.is i32
    %i64 = irdl.is i64
    %index = irdl.any_of(%i32, %i64)
    irdl.operands(value: %value, buffer: %buffer, index: %index)
    irdl.results()
  }
  irdl.operation @tile_atomic {
    %value = irdl.any
    %buffer = irdl.base "!spconv.buffer"
    %i32 = irdl.is i32
    %i64 = irdl.is i64
    %index = irdl.any_of(%i32, %i64)
    %kind = irdl.base "#builtin.string"
    irdl.operands(value: %value, buffer: %buffer, index: %index)
    irdl.results()
    irdl.attributes {"kind" = %kind}
  }
  irdl.operation @tile_fetch_add {
    %i32 = irdl.is i32
    %i64 = irdl.is i64
    %value = irdl.is i32
    %buffer = irdl.base "!spconv.buffer"
    %index = irdl.any_of(%i32, %i64)
    %old = irdl.is i32
    irdl.operands(value: %value, buffer: %buffer, index: %index)
    irdl.results(old: %old)
  }
  irdl.operation @tile_load_device {
    %buffer = irdl.base "!spconv.buffer"
    %i32 = irdl.is i32
    %i64 = irdl.is i64
    %index = irdl.any_of(%i32, %i64)
    %value = irdl.any
    irdl.operands(buffer: %buffer, index: %index)
    irdl.results(value: %value)
  }
  irdl.operation @tile_store_device {
    %value = irdl.any
    %buffer = irdl.base "!spconv.buffer"
    %i32 = irdl.is i32
    %i64 = irdl.is i64
    %index = irdl.any_of(%i32, %i64)
    irdl.operands(value: %value, buffer: %buffer, index: %index)
    irdl.results()
  }
  irdl.operation @tile_mma {
    %a = irdl.base "!builtin.vector"
    %b = irdl.base "!builtin.vector"
    %c = irdl.base "!builtin.vector"
    %d = irdl.base "!builtin.vector"
    %shape = irdl.any
    irdl.operands(a: %a, b: %b, c: %c)
    irdl.results(d: %d)
    irdl.attributes {"shape" = %shape}
  }
}
