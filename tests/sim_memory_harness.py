"""Worlds in which one instruction runs on both engines: helpers of test_sim_native_memory.

A world is a memory in the middle of a launch, random but for a seed; `Native` is a context of the native engine with
the state of one wave of it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from typing import Any

import numpy as np

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim import local as local_rules
from spconv_compiler.sim.machine import Batch
from spconv_compiler.sim.memory import Allocation, Memory
from spconv_compiler.sim.native import faults, layout, library, memory_block
from spconv_compiler.sim.native.launch import prepare_contexts
from spconv_compiler.sim.native.program import NativeProgram, aligned

REGISTERS = 32
WAVES = 3
ARENA = 1 << 16
Random = np.random.Generator


@functools.cache
def handlers(checks: bool) -> library.Library:
    """The handlers of the table, for this host."""
    return library.load(library.build_of(checks))


@dataclasses.dataclass
class World:
    """A memory in the middle of a launch: allocations of several kinds, touched by other waves and workgroups."""

    memory: Memory
    targets: list[Allocation]
    batch: Batch

    def arrays(self) -> dict[str, Any]:
        """All state that an instruction may change; by wave where the name says so."""
        batch, memory = self.batch, self.memory
        return {
            "memory": memory._words[: ARENA // 4],
            "cells": memory._cells[: ARENA // 4],
            "local": batch.local._words,
            "local cells": batch.local._cells,
            "scratch": batch.private._bytes,
            "scratch written": batch.private._ready,
            "vector of": batch.vector,
            "vector_defined of": batch.vector_defined,
            "scalar of": batch.scalar,
            "scalar_defined of": batch.scalar_defined,
        }

    def snapshot(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self.arrays().items()}

    def restore(self, kept: dict[str, Any]) -> None:
        for name, array in self.arrays().items():
            array[:] = kept[name]


def make_world(kernel: Any, rng: Random, *, waves: int = WAVES, clean: float = 0.8) -> World:
    """clean: share of the worlds in which no word has an owner that conflicts."""
    memory = Memory()
    targets = [
        memory.allocate("input", 1024, writable=False),
        memory.allocate("words", 4096),
        memory.allocate("odd", 1022),
        memory.allocate("fresh", 512),
        memory.allocate("gone", 256),
    ]
    for target in (*targets[:3], targets[4]):
        memory.write_array(target, rng.integers(0, 256, target.size, np.uint8))
    memory.free(targets[4])
    memory.begin_launch(waves)
    # A workgroup of one wave has one segment.
    for groups in ([0, 1, 7], [1, 7], [7]) if waves > 1 else ([0, 1, 2], [3]):
        memory.begin_epoch(np.array(groups))
    batch = Batch(kernel, memory, np.full(waves, 7), np.arange(waves), waves)
    if rng.random() > clean:
        _scatter_owners(memory, targets[1], rng, int(batch.segments[0]))
    batch.vector[:] = rng.integers(0, 2**32, batch.vector.shape, np.uint32)
    batch.vector_defined[:] = random_lanes(rng, batch.vector_defined.shape)
    batch.scalar[:] = 0
    batch.scalar_defined[:] = 0xFFFFFFFF
    batch.epochs[:] = int(rng.integers(1, 300))
    batch.private._bytes[:] = rng.integers(0, 256, batch.private._bytes.shape, np.uint8)
    batch.private._ready[:] = rng.random(batch.private._ready.shape) >= (0 if rng.random() < clean else 0.001)
    _scatter_local(batch, rng, 0.5 if rng.random() > clean else 0.0)
    return World(memory, targets, batch)


def random_lanes(rng: Random, shape: Any) -> Any:
    whole = rng.random(shape) < 0.9
    return np.where(whole, np.uint64(layout.ALL), rng.integers(0, 2**64 - 1, shape, np.uint64))


def _scatter_owners(memory: Memory, target: Allocation, rng: Random, mine: int) -> None:
    """Random owners for a tenth of the words, and missing bytes for some."""
    first = (target.address - memory.base) // 4
    part = memory._cells[first : first + target.size // 4]
    count = len(part)
    segments = rng.choice(np.array([*range(1, mine + WAVES + 1), rules.MANY], np.uint32), count)
    kinds = rng.integers(0, len(rules.KINDS), count, np.uint32)
    kinds = np.where((kinds == rules.SETTLED) & (segments == rules.MANY), np.uint32(rules.READ), kinds)
    owned = rules.owner(kinds, segments).astype(np.uint32) | part
    part[:] = np.where(rng.random(count) < 0.03, owned, part)
    part[:] = np.where(rng.random(count) < 0.005, part & ~np.uint32(rng.integers(1, 16)), part)


def _scatter_local(batch: Batch, rng: Random, share: float) -> None:
    """Local memory, initialised but for some words, that waves wrote and read in this and the last epoch."""
    words, cells = batch.local._words, batch.local._cells
    words[:] = rng.integers(0, 2**32, words.shape, np.uint32)
    epochs = int(batch.epochs[0]) - rng.integers(0, 2, (2, *cells.shape))
    writer = local_rules.tags(rng.integers(0, WAVES, cells.shape) + 16 * rng.integers(0, 2, cells.shape), epochs[0])
    reader = local_rules.tags(rng.integers(0, WAVES, cells.shape), epochs[1])
    several = np.where(rng.random((2, *cells.shape)) < 0.2, local_rules.SEVERAL, 0)
    writer, reader = np.where(several[0], writer & ~16 | 32, writer), reader | several[1]
    tagged = writer << local_rules.WRITER_SHIFT | reader << local_rules.READER_SHIFT
    owned = rng.random(cells.shape) < 0.05 * share
    cells[:] = np.where(owned, tagged.astype(np.uint32), np.uint32(0)) | np.uint32(15)
    cells[rng.random(cells.shape) < 0.01 * share] &= np.uint32(0xFFFFFFF6)


def lanes_mask(rng: Random) -> int:
    kind = rng.random()
    if kind < 0.5:
        return int(layout.ALL)
    return int(rng.integers(0, 2**64 - 1, dtype=np.uint64)) if kind < 0.9 else int(kind < 0.95)


class Native:
    """A native context with the state of one wave."""

    def __init__(self, world: World, wave: int, program: NativeProgram, records: Any) -> None:
        self.world, self.program, self.wave = world, program, wave
        batch = world.batch
        self.bytes = aligned(layout.context_bytes(REGISTERS))
        prepare_contexts(self.bytes[None, :], program.constants, handlers(True).addresses)
        self.block = aligned(layout.LAUNCH_BYTES)
        memory_block.fill(self.block, world.memory, 1)
        self.block[layout.GROUP_WAVES :][:8].view(np.int64)[0] = batch.group_waves
        numbers = {
            layout.WAVE: wave,
            layout.SEGMENT: batch.segments[wave],
            layout.EPOCH: batch.epochs[wave],
            layout.LDS_BYTES: batch.local.size,
        }
        for place, value in numbers.items():
            self.view(place, np.int32, 1)[0] = value
        stride = memory_block.local_stride(batch.local.size)
        self.block[layout.LDS_STRIDE :][:8].view(np.int64)[0] = stride
        self.local, self.local_cells = aligned(stride), aligned(stride)
        self._local = ((self.local, batch.local._words), (self.local_cells, batch.local._cells))
        for own, shared in self._local:
            own[: shared.nbytes] = shared.view(np.uint8).reshape(-1)
        private = batch.private
        self.block[layout.PRIVATE_BYTES :][:8].view(np.int64)[0] = private.size
        self._private = private._bytes[wave], private._ready[wave]
        self.private = aligned(2 * private._bytes[wave].size)
        self.private[:] = np.concatenate([array.reshape(-1).view(np.uint8) for array in self._private])
        self.view(layout.PRIVATE, np.uint64, 1)[0] = self.private.ctypes.data
        self.view(layout.LDS, np.uint64, 2)[:] = self.local.ctypes.data, self.local_cells.ctypes.data
        self.view(layout.GROUP, np.int64, 1)[0] = batch.groups[wave]
        self.view(layout.LAUNCH, np.uint64, 1)[0] = self.block.ctypes.data
        self.scalar = self.view(layout.SCALARS, np.uint32, 128)
        self.scalar_defined = self.view(layout.SCALARS + layout.SCALAR_DEFINED, np.uint32, 128)
        self.vector = self.view(layout.VECTORS, np.uint32, 64 * REGISTERS).reshape(REGISTERS, 64)
        self.vector_defined = self.view(layout.VECTOR_DEFINED, np.uint64, REGISTERS)
        self.scalar[:], self.scalar_defined[:] = batch.scalar[:, wave], batch.scalar_defined[:, wave]
        self.vector[:], self.vector_defined[:] = batch.vector[:, wave], batch.vector_defined[:, wave]
        self.records = records

    def view(self, offset: int, kind: Any, count: int) -> Any:
        return self.bytes[offset : offset + np.dtype(kind).itemsize * count].view(kind)

    def fetch_local(self) -> None:
        """Copies local memory and scratch memory back into the batch."""
        for array, part in zip(self._private, np.split(self.private, 2), strict=True):
            array.reshape(-1).view(np.uint8)[:] = part
        for own, shared in self._local:
            shared[:] = own[: shared.nbytes].view(np.uint32).reshape(shared.shape)

    def run(self, index: int) -> str | None:
        """Runs one record; the fault, if there is one."""
        place = self.records.ctypes.data + layout.RECORD_BYTES * index
        handler = self.records.view(np.uint64)[index * layout.RECORD_BYTES // 8]
        function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(int(handler))
        found = function(self.bytes.ctypes.data, place)
        if self.view(layout.STATUS, np.int32, 1)[0] != layout.Status.FAULT:
            assert found == place + layout.RECORD_BYTES
            return None
        assert found is None
        code = int(self.view(layout.FAULT_CODE, np.int32, 1)[0])
        named = int(self.view(layout.FAULT_LANE, np.int32, 1)[0])
        lane = None if named == -1 else named
        item = self.program.instructions[index]
        if code == layout.Code.MEMORY:
            fields = self.records[index * layout.RECORD_BYTES + layout.FIELDS :][:48].view(np.int32)
            lane, text = faults.explain(self.world.memory, item, self.bytes, fields)
        elif code == layout.Code.LANDING:
            lane, text = faults.explain_landing(self.bytes)
        else:
            text = faults.text_of(code, item, self.bytes, lane, self.world.batch.private.size)
        return text if lane is None else f"lane {lane}: {text}"
