"""Every opcode that the simulator knows, by name. An opcode without a row here is refused by the decoder."""

from __future__ import annotations

from spconv_compiler.sim import isa_memory, isa_scalar, isa_vector
from spconv_compiler.sim.rows import Row

ROWS: dict[str, Row] = {row.name: row for part in (isa_scalar, isa_vector, isa_memory) for row in part.ROWS}
