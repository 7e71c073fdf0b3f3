"""Measurements of this compiler on this machine, beside other implementations. See tools/bench.py."""
