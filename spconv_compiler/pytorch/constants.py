"""spconv's switches, for code that sets them: each is accepted and has no effect.

Sums are taken in f32 and inputs are read as they are (there is no TF32); maps are chosen by the compiler.
"""

from __future__ import annotations

SPCONV_ALLOW_TF32 = False
SPCONV_USE_DIRECT_TABLE = True
SPCONV_CPP_INDICE_PAIRS = False
SPCONV_CPP_INDICE_PAIRS_IGEMM = False
SPCONV_CPP_GEMM = False
SPCONV_FX_TRACE_MODE = False
