"""The passes. `registry` maps pass names to modules; `base` holds the contract that every pass keeps."""

from __future__ import annotations

if __name__ != "spconv_compiler.passes":
    raise ImportError(f"import this package as spconv_compiler.passes, not as {__name__}")
