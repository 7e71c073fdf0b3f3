"""Runs a network step by step on a GPU target, real or simulated: convolutions by their kernels, rows by torch.

The plan, the maps and the folded weights are those of the CPU. Every value is a tensor of its own, in host memory or on
the GPU that the arguments lie on; what no convolution has taken over (scale, concatenation, a lone activation) torch
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spconv_compiler.arrays import Array, as_array
from spconv_compiler.driver import load_conv
from spconv_compiler.network.kernels import step_options
from spconv_compiler.network.maps import RunMaps
from spconv_compiler.network.memory import Slots, last_uses, peak_bytes
from spconv_compiler.network.plan import NetworkPlan, Step
from spconv_compiler.sparse_driver import load_sparse
from spconv_compiler.sparse_options import ON_ROWS

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class StepNetwork:
    """A plan with its kernels loaded. The counterpart of cpu.CpuNetwork."""

    def __init__(self, plan: NetworkPlan, target: str) -> None:
        self._plan = plan
        self._kernels = [_load(step, target) for step in plan.steps]
        self._packed: list[Any] = [None] * len(plan.steps)
        self._vectors = [{name: tensor for name, tensor in step.numbers if name != "weight"} for step in plan.steps]
        self._last = last_uses(plan)

    @property
    def any_kernel(self) -> Any:
        """A kernel that finds boxes, or None without one."""
        return next((kernel for kernel in self._kernels if kernel is not None), None)

    def use_slots(self, slots: Slots) -> None:
        """Nothing: torch's allocator holds the values."""

    def run(self, maps: RunMaps, given: Mapping[int, Array], *, keep: bool) -> dict[int, torch.Tensor]:
        """As CpuNetwork.run."""
        values: dict[int, Any] = {number: array.source for number, array in given.items()}
        wanted = {number for kind, number in self._plan.results if kind == "value"}
        last_map = {step.map: place for place, step in enumerate(self._plan.steps)}
        for place, step in enumerate(self._plan.steps):
            operands = {name: values[number] for name, number in step.reads}
            out = self._plan.values[step.out]
            rows = maps.rows(out.level)
            made = operands["features"].new_empty((rows, out.channels), dtype=_DTYPES[out.dtype])
            if step.operation in ON_ROWS:
                made = _on_rows(step, operands, self._vectors[place], _DTYPES[out.dtype])
            elif rows > 0:
                self._convolve(place, step, maps, operands, made)
            values[step.out] = made
            for number in {number for _, number in step.reads}:
                if self._last[number] == place and number not in wanted and number not in given:
                    del values[number]
            if not keep and step.map is not None and last_map[step.map] == place:
                maps.drop(step.map)
        return {number: values[number] for number in wanted if number not in given}

    def _convolve(self, place: int, step: Step, maps: RunMaps, operands: Mapping[str, Any], out: torch.Tensor) -> None:
        assert step.map is not None
        arrays = {name: as_array(tensor, name, on_gpu=True) for name, tensor in operands.items()}
        kernel = self._kernels[place].on(arrays["features"].device)
        weight = dict(step.numbers).get("weight")
        if weight is not None and self._packed[place] is None:
            self._packed[place] = kernel.pack(as_array(weight.to(out.device), "weight", on_gpu=True))
        bias = self._vectors[place].get("bias")
        more = {
            "bias": None if bias is None else as_array(bias.to(out.device), "bias", on_gpu=True),
            "residual": arrays.get("residual"),
        }
        if self._plan.maps[step.map].submanifold:
            built = maps.submanifold(step.map, kernel)
            kernel.run(built, self._packed[place], arrays["features"], out.data_ptr(), **more)
        else:
            pairs, symbols = maps.pairs(step.map, step.inverse, kernel, _more(step))
            kernel.run(pairs, symbols, arrays["features"], out.data_ptr(), self._packed[place], **more)

    def launches(self) -> tuple[list[int], int]:
        """(launches of each convolution or pool, launches of all maps): what the plans of the kernels say."""
        own, groups = [], set()
        for step, kernel in zip(self._plan.steps, self._kernels, strict=True):
            if kernel is None:
                continue
            launches = kernel.artifact.plan.launches
            own.append(sum(launch.group == "output" for launch in launches))
            for launch in launches:
                if launch.group not in ("output", "weights"):
                    # Kernels that relate two sets serve both directions.
                    direction = step.inverse and launch.group == "pairs"
                    groups.add((step.map, direction, launch.group, launch.kernel))
        return own, len(groups)

    def feature_bytes(self, rows: Sequence[int]) -> int:
        """The most bytes of values that are alive at once."""
        return peak_bytes(self._plan, [rows[value.level] * value.row_bytes for value in self._plan.values])

    arena_bytes = 0

    @property
    def parameter_bytes(self) -> int:
        """Bytes of weights and vectors, as they were given."""
        return sum(tensor.nbytes for step in self._plan.steps for _, tensor in step.numbers)


def _load(step: Step, target: str) -> Any:
    if step.operation in ON_ROWS:
        return None
    options: Any = step_options(step, target)
    return load_conv(options) if step.operation == "subm_conv" else load_sparse(options)


def _more(step: Step) -> dict[str, Any]:
    return {name: value for name, value in step.options.items() if name not in ("geometry", "kernel_size", "dilation")}


def _on_rows(
    step: Step, operands: Mapping[str, Any], vectors: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """An op on rows, in f32 and rounded once."""
    x: torch.Tensor = operands["features"]
    if step.operation == "concat":
        return torch.cat([x, operands["second"]], dim=1)
    x = x.float()
    if step.operation == "affine":
        scale, shift = (vectors[name].to(x.device) for name in ("scale", "shift"))
        return torch.addcmul(shift, x, scale).to(dtype)
    x = x + operands["residual"].float() if "residual" in operands else x
    match step.options["activation"]:
        case "relu":
            x = torch.relu(x)
        case "leaky_relu":
            x = torch.nn.functional.leaky_relu(x, step.options["negative_slope"])
        case "gelu":
            x = torch.nn.functional.gelu(x)
        case "silu":
            x = torch.nn.functional.silu(x)
    return x.to(dtype)
