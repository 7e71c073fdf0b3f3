"""Loads the IRDL files into a context, once, and attaches verifiers and effects.

Loading an op twice into one context aborts the process, so `register` remembers the contexts it has served.
It does so by a marker operation rather than by the Python object: two Python objects may name one context.
"""

from __future__ import annotations

import pathlib

from spconv_compiler.bindings import ir, load_irdl
from spconv_compiler.dialect.op import NoEffects, SpconvOp, SpconvVerifier

# Types first: the later files name them.
FILES = ("types", "conv", "sparse", "network", "stages", "cross", "levels", "frame", "tile", "copy", "plan")
_MARKER = "spconv.map"


def register(context: ir.Context) -> None:
    """Makes the dialect known to `context`; a second call does nothing."""
    if context.is_registered_operation(_MARKER):
        return
    folder = pathlib.Path(__file__).parent
    with context, ir.Location.unknown():
        for name in FILES:
            path = folder / f"{name}.irdl.mlir"
            load_irdl(ir.Module.parse(path.read_text(), context))
        for op_class in _concrete(SpconvOp):
            SpconvVerifier.attach(op_class.OPERATION_NAME)
            if op_class.PURE:
                NoEffects.attach(op_class.OPERATION_NAME)


def _concrete(base: type[SpconvOp]) -> list[type[SpconvOp]]:
    """Every op class below `base`."""
    found = [base] if "OPERATION_NAME" in base.__dict__ else []
    for child in base.__subclasses__():
        found.extend(_concrete(child))
    return found
