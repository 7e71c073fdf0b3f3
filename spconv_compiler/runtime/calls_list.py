"""The layout of the list of calls that `run_calls` of every CPU code object makes (passes/cpu/host_functions.py)."""

from __future__ import annotations

CALL_ARGUMENTS = 16
# The function's address, its arguments, its result.
CALL_WORDS = CALL_ARGUMENTS + 2
