"""Whole convolutions at level gpu: compile one, make inputs, run its plan."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from spconv_compiler.bindings import ir
from spconv_compiler.context import make_context
from spconv_compiler.dialect import GemmOp
from spconv_compiler.dialect.types import schedule_attr
from spconv_compiler.frontend import conv_module
from spconv_compiler.options import CompileOptions
from spconv_compiler.passes.base import ops_named
from spconv_compiler.pipeline import passes_between
from spconv_compiler.targets import get_target

from .memory import Array, Buffer
from .plan import run_plan

TARGET = "gfx950"


@contextlib.contextmanager
def fresh_context() -> Iterator[None]:
    """A context of our own, so that nothing is left of it after a test."""
    with make_context(), ir.Location.unknown():
        yield


def level_gpu(options: CompileOptions, gemm_schedule: Mapping[str, int] | None = None) -> ir.Module:
    """A convolution at level gpu, in the current context.

    gemm_schedule: parameters of the gemm's schedule that replace the chosen ones.
    """
    module = conv_module(options)
    for stage in passes_between(get_target(options.target), "spconv", "gpu", options.schedule):
        if stage.source == "stages" and gemm_schedule:
            for gemm in ops_named(module, GemmOp.OPERATION_NAME):
                name, parameters = gemm.schedule
                gemm.operation.attributes["schedule"] = schedule_attr(name, {**parameters, **gemm_schedule})
        for pass_ in stage.passes:
            pass_.run(module)
            assert module.operation.verify()
    return module


@dataclasses.dataclass
class Inputs:
    """What a caller of a convolution passes, bf16 and f16 values in float32."""

    coords: Array
    features: Array
    weight: Array
    bias: Array | None

    def named(self) -> dict[str, Array]:
        arrays = {"coords": self.coords, "features": self.features, "weight": self.weight}
        return arrays if self.bias is None else {**arrays, "bias": self.bias}


def options_for(kernel: tuple[int, int, int], c_in: int, c_out: int, **others: Any) -> CompileOptions:
    """Options of a bf16 → f32 convolution for the GPU by `pairs_m16`, with changes."""
    given = {"dtype": "bf16", "target": TARGET, "schedule": "pairs_m16", **others}
    return CompileOptions(**given, kernel_size=kernel, c_in=c_in, c_out=c_out)


def scattered_coords(rng: np.random.Generator, rows: int, span: int, batches: int = 1, low: int = 0) -> Array:
    """int32 [rows, 4]: distinct voxels in a box of side `span` at `low`, in random order, batches interleaved."""
    cells = rng.choice(batches * span**3, rows, replace=False)
    place = np.stack(np.unravel_index(cells, (batches, span, span, span)), axis=1)
    return (place + [0, low, low, low]).astype(np.int32)


def whole_inputs(rng: np.random.Generator, options: CompileOptions, coords: Array) -> Inputs:
    """Integer-valued features, weights and bias, so small that f32 sums of them are exact."""
    shape = (options.c_out, *options.kernel_size, options.c_in)
    return Inputs(
        coords,
        rng.integers(-4, 5, (len(coords), options.c_in)).astype(np.float32),
        rng.integers(-4, 5, shape).astype(np.float32),
        rng.integers(-9, 10, options.c_out).astype(np.float32) if options.bias else None,
    )


def box_symbols(options: CompileOptions, coords: Array) -> dict[str, int]:
    """The plan's symbols for these coordinates."""
    halo = [size // 2 * step for size, step in zip(options.kernel_size, options.dilation, strict=True)]
    rows = coords.astype(np.int64) if len(coords) else np.zeros((1, 4), np.int64)
    symbols = {"rows": len(coords), "threads": 1, "batches": int(rows[:, 0].max()) + 1}
    cells = symbols["batches"]
    for axis, name in enumerate("zyx"):
        column = rows[:, axis + 1]
        symbols[f"min_{name}"] = int(column.min()) - halo[axis]
        symbols[f"extent_{name}"] = int(column.max() - column.min()) + 1 + 2 * halo[axis]
        cells *= symbols[f"extent_{name}"]
    return {**symbols, "cells": cells}


def run_conv(
    options: CompileOptions,
    inputs: Inputs,
    *,
    gemm_schedule: Mapping[str, int] | None = None,
    symbols: Mapping[str, int] | None = None,
    edit: Callable[[str], str] | None = None,
    between: Callable[[str, dict[str, Buffer]], None] | None = None,
) -> dict[str, Buffer]:
    """Compiles to level gpu and runs; every buffer by name.

    symbols: replace those of the coordinates' box. edit: changes the text of the module before it is run.
    """
    with fresh_context():
        module = level_gpu(options, gemm_schedule)
        if edit is not None:
            module = ir.Module.parse(edit(module.operation.get_asm()))
        box = {**box_symbols(options, inputs.coords), **(symbols or {})}
        return run_plan(module, inputs.named(), box, len(inputs.coords) * options.c_out, between)
