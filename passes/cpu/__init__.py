"""Bodies of the CPU kernels at level `loops`, and what they share. What a processor can do is asked of its target."""
