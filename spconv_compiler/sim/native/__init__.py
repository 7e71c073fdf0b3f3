"""The native engine of the simulator: opcodes as machine code for this host, made through MLIR."""
