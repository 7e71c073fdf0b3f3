"""Kernels that LLVM made from MLIR: every opcode is known, the static checks accept them, and they compute right."""

from __future__ import annotations

import collections
import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sim_corpus import SAMPLES, kernel_of, run
from sim_corpus_kernels import as_f32
from test_sim_decode import CONVOLUTIONS, artifact

from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import Fault, SlowKernelWarning
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.interpreter import Machine, Program
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.mutation import wait_mutants
from spconv_compiler.sim.native import library
from spconv_compiler.sim.native.machine import NativeMachine
from spconv_compiler.sim.native.program import NativeProgram
from spconv_compiler.sim.static_checks import check


@pytest.mark.parametrize("name", SAMPLES)
def test_result(name: str) -> None:
    sample = SAMPLES[name]
    found, wanted = run(sample, kernel_of(name)), sample.expected(sample.data)
    if name == "hash insert":
        # Where a key lies depends on the order of the lanes.
        found = np.sort(found.view(np.uint64))
    if not sample.tolerance:
        np.testing.assert_array_equal(found.reshape(-1), wanted.reshape(-1))
        return
    if found.dtype == np.uint16:
        found, wanted = as_f32(found), as_f32(wanted)
    np.testing.assert_allclose(found, wanted, rtol=sample.tolerance, atol=sample.tolerance * float(abs(wanted).max()))


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_uses_what_it_is_for(name: str) -> None:
    """And the static checks find nothing wrong with what LLVM made."""
    kernel = kernel_of(name)
    items = decode(kernel.code, kernel.address)
    for opcode in SAMPLES[name].opcodes:
        base, _, form = opcode.partition(" ")
        forms = {item.format for item in items}
        assert (
            base == "DPP"
            and "DPP" in forms
            or any(item.row.name.startswith(base) and form in ("", item.format) for item in items)
        ), opcode
    assert [str(violation) for violation in check(items)] == []


# LLVM waits for stores here: volatile ones, and those before a release. No register shows that anything needs it.
VOLATILE = ("scratch", "look-back")


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in VOLATILE])
def test_wait_mutants_of_samples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped or weaker wait is found on all paths, or when the kernel runs: loads to LDS have no register."""
    kernel = kernel_of(name)
    items = decode(kernel.code, kernel.address)
    lds = any(item.row.access is not None and item.row.access.lds for item in items)
    missed = [mutant for mutant in wait_mutants(items) if "cnt" in mutant.change and not mutant.caught()]
    if lds:
        missed = [mutant for mutant in missed if not _faults(name, mutant.instructions, monkeypatch)]
    assert [f"{items[mutant.index]}: {mutant.change}" for mutant in missed] == []


def _faults(name: str, instructions: Sequence[Instruction], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the sample with other instructions is stopped when it runs."""
    program = Program(kernel_of(name))
    program.instructions = list(instructions)
    program.steps = [program._bind_counted(item) for item in instructions]
    with monkeypatch.context() as patch:
        patch.setattr(Machine, "program", lambda self, key: program)
        try:
            run(SAMPLES[name], kernel_of(name))
        except Fault as fault:
            return "nobody wrote" in str(fault) or "race" in str(fault)
    return False


@functools.cache
def handlers() -> library.Library:
    """What the samples need beside the table, built at once: a process for each takes longer than a sample runs."""
    build, missing = library.build_of(True), dict[str, Any]()
    table = library.load(build).addresses
    for name in SAMPLES:
        missing.update(NativeProgram(kernel_of(name)).missing(table))
    return library.load_more(build, missing)


@pytest.mark.parametrize("name", SAMPLES)
def test_native_engine_agrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, without help of the numpy engine."""
    sample, more = SAMPLES[name], handlers()
    monkeypatch.setattr(library, "load_more", lambda build, shapes: more)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowKernelWarning)
        found = run(sample, kernel_of(name), NativeMachine)
    np.testing.assert_array_equal(found, run(sample, kernel_of(name)))


def test_look_back_over_many_workgroups() -> None:
    data = np.random.default_rng(6).integers(-99, 99, 512).astype(np.int32)
    sample = dataclasses.replace(SAMPLES["look-back"], data=data, groups=8, start=np.zeros(528, np.int32))
    np.testing.assert_array_equal(run(sample, kernel_of("look-back"), NativeMachine), sample.expected(data))


def test_every_opcode_of_every_kernel_has_a_row() -> None:
    """The kernels of the project and of the corpus; the table says how often each opcode stands in them."""
    counts: collections.Counter[str] = collections.Counter()
    loaded = [CodeObject(artifact(convolution).object).kernels for convolution in CONVOLUTIONS]
    # Convolutions share kernels.
    for kernel in {kernel.code: kernel for kernels in loaded for kernel in kernels.values()}.values():
        counts.update(item.row.name for item in decode(kernel.code, kernel.address))
    ours = len(counts)
    for name in SAMPLES:
        kernel = kernel_of(name)
        counts.update(item.row.name for item in decode(kernel.code, kernel.address))
    assert set(counts) <= set(ROWS)
    assert ours > 60 and len(counts) > 150
