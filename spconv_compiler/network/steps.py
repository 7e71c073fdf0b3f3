"""Runs a network step by step on a GPU target, real or simulated: convolutions by their kernels, rows by torch.

The plan, the maps and the folded weights are those of the CPU. Every value is a tensor of its own, in host memory or on
the GPU that the arguments lie on; what no convolution has taken over (scale, concatenation, a lone activation) torch
does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from spconv_compiler.arrays import Array, as_array
from spconv_compiler.driver import load_conv
from spconv_compiler.network.kernels import Options, step_options
from spconv_compiler.network.level_plan import LevelPlan, launches, level_plan
from spconv_compiler.network.maps import RunMaps
from spconv_compiler.network.memory import Slots, last_uses, peak_bytes
from spconv_compiler.network.plan import NetworkPlan, Step
from spconv_compiler.options import CompileOptions
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.sparse_driver import load_sparse
from spconv_compiler.sparse_options import ON_ROWS

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class StepNetwork:
    """A plan with its kernels loaded. The counterpart of cpu.CpuNetwork.

    Attributes:
        target: its name.
    """

    def __init__(self, plan: NetworkPlan, target: str) -> None:
        self._plan, self.target = plan, target
        self._kernels = _load_all(plan, target)
        self._constants: dict[tuple[int, int | None], tuple[Any, Mapping[str, Buffer], Array | None]] = {}
        self._vectors = [{name: tensor for name, tensor in step.numbers if name != "weight"} for step in plan.steps]
        self._last = last_uses(plan)

    @functools.cached_property
    def level_plan(self) -> LevelPlan | None:
        """The levels and maps that one plan builds together, where a network is queued as one."""
        return level_plan(self._plan, self._kernels, self.target)

    @property
    def any_kernel(self) -> Any:
        """A kernel that finds boxes, or None without one."""
        return next((kernel for kernel in self._kernels if kernel is not None), None)

    def use_slots(self, slots: Slots) -> None:
        """Nothing: torch's allocator holds the values."""

    def constants(self, place: int, device: int | None) -> tuple[Any, Mapping[str, Buffer], Array | None]:
        """(kernel, packed weights, bias) of a step that has a kernel, on a GPU or (None) for arrays in host memory."""
        key = (place, device)
        if key not in self._constants:
            kernel = self._kernels[place].on(device)
            numbers = {name: _moved(tensor, name, device) for name, tensor in self._plan.steps[place].numbers}
            packed = kernel.pack(numbers["weight"]) if "weight" in numbers else {}
            self._constants[key] = kernel, packed, numbers.get("bias")
        return self._constants[key]

    def on_rows(self, place: int, operands: Mapping[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
        """What does a step on rows, by torch."""
        step = self._plan.steps[place]
        dtype = _DTYPES[self._plan.values[step.out].dtype]
        vectors = {name: tensor.to(operands["features"].device) for name, tensor in self._vectors[place].items()}
        return functools.partial(_on_rows, step, operands, vectors, dtype)

    def run(self, maps: RunMaps, given: Mapping[int, Array], *, keep: bool) -> dict[int, torch.Tensor]:
        """As CpuNetwork.run."""
        values: dict[int, Any] = {number: array.source for number, array in given.items()}
        wanted = {number for kind, number in self._plan.results if kind == "value"}
        last_map = {step.map: place for place, step in enumerate(self._plan.steps)}
        for place, step in enumerate(self._plan.steps):
            operands = {name: values[number] for name, number in step.reads}
            out = self._plan.values[step.out]
            rows = maps.rows(out.level)
            if step.operation in ON_ROWS:
                made = self.on_rows(place, operands)()
            else:
                made = operands["features"].new_empty((rows, out.channels), dtype=_DTYPES[out.dtype])
                if rows > 0:
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
        kernel, packed, bias = self.constants(place, arrays["features"].device)
        more = {"bias": bias, "residual": arrays.get("residual")}
        if self._plan.maps[step.map].submanifold:
            built = maps.submanifold(step.map, kernel)
            kernel.run(built, packed, arrays["features"], out.data_ptr(), **more)
        else:
            pairs, symbols = maps.pairs(step.map, step.inverse, kernel, _more(step))
            kernel.run(pairs, symbols, arrays["features"], out.data_ptr(), packed, **more)

    def launches(self) -> tuple[list[int], int]:
        """(launches of each convolution or pool, launches of all levels and maps): see level_plan.launches."""
        return launches(self._plan, self._kernels, self.level_plan)

    def feature_bytes(self, rows: Sequence[int]) -> int:
        """The most bytes of values that are alive at once."""
        return peak_bytes(self._plan, [rows[value.level] * value.row_bytes for value in self._plan.values])

    arena_bytes = 0

    @property
    def parameter_bytes(self) -> int:
        """Bytes of weights and vectors, as they were given."""
        return sum(tensor.nbytes for step in self._plan.steps for _, tensor in step.numbers)


def _moved(tensor: torch.Tensor, what: str, device: int | None) -> Array:
    """A tensor where a kernel reads it."""
    return as_array(tensor if device is None else tensor.to(f"cuda:{device}"), what, on_gpu=True)


def _load_all(plan: NetworkPlan, target: str) -> list[Any]:
    """The kernel of every step, None for one on rows; equal ones once. Drivers compile code side by side."""
    wanted = [None if step.operation in ON_ROWS else step_options(step, target) for step in plan.steps]
    distinct = list(dict.fromkeys(options for options in wanted if options is not None))
    with ThreadPoolExecutor(max_workers=max(1, min(len(distinct), os.cpu_count() or 1))) as pool:
        loaded = dict(zip(distinct, pool.map(_load, distinct), strict=True))
    return [None if options is None else loaded[options] for options in wanted]


def _load(options: Options) -> Any:
    return load_conv(options) if isinstance(options, CompileOptions) else load_sparse(options)


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
