"""A strict simulator of gfx950: runs linked code objects instruction by instruction, on numpy arrays."""
