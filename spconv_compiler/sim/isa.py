"""Every opcode that the simulator knows, by name. An opcode without a row here is refused by the decoder."""

from __future__ import annotations

from spconv_compiler.sim import (
    isa_control,
    isa_cross,
    isa_float,
    isa_half,
    isa_integer,
    isa_matrix,
    isa_memory,
    isa_packed,
    isa_scalar,
    isa_transfer,
    isa_vector,
)
from spconv_compiler.sim.rows import Row

_PARTS = (
    isa_scalar, isa_control, isa_vector, isa_float, isa_half, isa_integer, isa_packed, isa_cross, isa_matrix,
    isa_memory, isa_transfer,
)  # fmt: skip
ROWS: dict[str, Row] = {row.name: row for part in _PARTS for row in part.ROWS}
