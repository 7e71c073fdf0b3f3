"""Results without a backward pass: asking for a gradient raises instead of silently giving none."""

from __future__ import annotations

from typing import Any

from spconv_compiler.arrays import is_tensor, torch_module
from spconv_compiler.errors import SpconvError


def forward_only(out: Any, name: str, *inputs: Any) -> Any:
    """`out`, whose backward() says that the op called `name` has none, if a gradient of `inputs` is wanted."""
    if not any(getattr(value, "requires_grad", False) for value in inputs):
        return out
    torch = torch_module()
    if torch is None or not torch.is_grad_enabled() or not is_tensor(out):
        return out

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise SpconvError(f"{name} has no backward pass in this version; run it under torch.no_grad() for inference")

    # In a list the result is no input of the function, so it is not taken for a view, which in-place ops refuse.
    methods = {"forward": staticmethod(lambda ctx, held, *inputs: held[0]), "backward": staticmethod(refuse)}
    function: Any = type("ForwardOnly", (torch.autograd.Function,), methods)
    return function.apply([out], *(value for value in inputs if is_tensor(value) and value.requires_grad))
