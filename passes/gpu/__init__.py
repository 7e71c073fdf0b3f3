"""Bodies of the GPU kernels at level `gpu`, and what they share. Nothing here names a target."""
