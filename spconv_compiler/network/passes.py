"""The passes on a network at level spconv, in order, and why in that order."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from spconv_compiler import env
from spconv_compiler.bindings import ir
from spconv_compiler.network.overflow import keep_large
from spconv_compiler.passes.base import Pass, Upstream
from spconv_compiler.passes.registry import pass_class
from spconv_compiler.pipeline import Stage
from spconv_compiler.runner import Runner


def sharing_passes() -> tuple[Pass, ...]:
    """Before the plan of the model as it is written."""
    # Strided layers over one coordinate set with one geometry have one set of outputs from here on.
    return (Upstream("share-coordinates", "cse"),)


def network_passes() -> tuple[Pass, ...]:
    """Every pass between import and plan."""
    return (
        *sharing_passes(),
        # Before pointwise ops are fused: a batch norm lies between a convolution and its activation.
        pass_class("fold-affine")(),
        pass_class("fuse-pointwise")(),
        # Drops what folding left without a use.
        Upstream("clean-network", "cse"),
    )


def optimize(
    module: ir.Module,
    context: ir.Context,
    passes: tuple[Pass, ...] | None = None,
    parameters: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Runs passes, by default all, on `module`; SPCONV_PRINT_AFTER and SPCONV_VERIFY hold here too.

    Args:
        parameters: if given, what would overflow with them is not folded (overflow.py).

    Raises:
        PassError, VerifyError: a pass refuses the module, or leaves it wrong.
    """
    runner = Runner(verify=env.VERIFY.get(), print_after=env.PRINT_AFTER.get())
    with context, ir.Location.unknown():
        if parameters is not None:
            keep_large(module, parameters)
        runner.run_stages(module, [Stage("spconv", "spconv", network_passes() if passes is None else passes)])
