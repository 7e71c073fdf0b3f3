"""The author's variants of the reference kernel (FlyDSL pull request 942), modelled, in the order he found.

Two are compiled (width of a slice, compaction: the same kernel on another pair list). Two are descriptions: weights
stored K-major are the compiled kernel with other addresses for its weights; operands staged through LDS are the
compiled kernel with instructions added. His source of those is not public, so each says what it assumes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spconv_compiler.sim.access_counter import AccessCounter
from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.counters import LaunchCounters, LdsTotals
from spconv_compiler.sim.decode import decode_one
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.lds_banks import phase_cycles
from spconv_compiler.sim.memory import Allocation
from spconv_compiler.sim.reference_kernel import GemmRun, Observer, compacted, compile_reference, run_gemm, uncompacted
from spconv_compiler.sim.timing import model_launch


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Two variants, the one that the author found faster first; published: by how much, in his words."""

    what: str
    channels: int
    better: str
    worse: str
    better_us: float
    worse_us: float
    published: str
    how: str

    @property
    def ratio(self) -> float:
        """Modelled time of the slower over that of the faster."""
        return self.worse_us / self.better_us

    @property
    def ranked(self) -> bool:
        """Whether the model sees the difference too: at least 2 %."""
        return self.ratio >= 1.02


def rankings(table_of: Callable[[int], Any]) -> Iterator[Ranking]:
    """All comparisons; table_of: neighbour table of so many voxels."""
    for rows, channels in ((32371, 128), (26509, 256), (15052, 512)):
        yield _slices(table_of(rows), channels)
    table = table_of(32371)
    kernel = compile_reference(128, 64, 1)
    pairs = compacted(table)
    plain = run_gemm(kernel, pairs, len(table), 128, 64)
    other = run_gemm(kernel, pairs, len(table), 128, 64, k_major(128))
    yield Ranking(
        "weights", 128, "interleaved", "K-major", plain.band.estimate_us, other.band.estimate_us, "1.8x",
        "described: the same loads, but a lane's 16 bytes stand in the row of its column, [tap][column][K]",
    )  # fmt: skip
    whole = run_gemm(kernel, uncompacted(table), len(table), 128, 64)
    yield Ranking(
        "pair list", 128, "compacted", "uncompacted", plain.band.estimate_us, whole.band.estimate_us, "2.4x to 3.3x",
        "run: the same kernel on a list of all rows through all taps; the compaction itself is not counted",
    )  # fmt: skip
    for name, pad in (("LDS", 0), ("LDS, padded", 32)):
        staged = through_lds(plain, pad)
        yield Ranking(
            "operands", 128, "registers", name, plain.band.estimate_us, staged, "8x to 17x",
            "described: every 16-byte load waits, goes to LDS, passes a barrier and is read back; rows of 64 bytes"
            + (f" + {pad}" if pad else ""),
        )  # fmt: skip


def _slices(table: Any, channels: int) -> Ranking:
    """CT 4 against CT 8: the author takes 4 up to 256 output channels, 8 beyond."""
    pairs, unroll = compacted(table), 2 if channels >= 512 else 1
    runs = {
        columns: run_gemm(compile_reference(channels, columns, unroll), pairs, len(table), channels, columns)
        for columns in (64, 128)
    }
    better, worse = (64, 128) if channels <= 256 else (128, 64)
    return Ranking(
        "slice", channels, f"CT {better // 16}", f"CT {worse // 16}", runs[better].band.estimate_us,
        runs[worse].band.estimate_us, "his default", "compiled",
    )  # fmt: skip


def k_major(channels: int) -> Callable[[AccessCounter, Allocation], Observer]:
    """Weights [tap][column][K] instead of [tap][16 columns][K / 8][column][8]: moves the addresses of their loads."""

    def watch(counter: AccessCounter, packed: Allocation) -> Observer:
        def observe(item: Instruction, groups: Any, waves: Any, lanes: Any, addresses: Any, size: int) -> None:
            start = np.uint64(packed.address)
            inside = (addresses >= start) & (addresses < start + np.uint64(packed.size))
            moved = np.where(inside, _k_major(addresses - start, channels) + start, addresses)
            counter(item, groups, waves, lanes, moved, size)

        return observe

    return watch


def _k_major(offsets: Any, channels: int) -> Any:
    """Bytes; of 2 each: ((panel · K/8 + q) · 16 + column) · 8 + e becomes (panel · 16 + column) · K + 8 q + e."""
    run, columns = np.uint64(16), np.uint64(16)
    runs = np.uint64(channels // 8)
    piece, inner = offsets // run, offsets % run
    column, rest = piece % columns, piece // columns
    q, panel = rest % runs, rest // runs
    return ((panel * columns + column) * runs + q) * run + inner


def through_lds(run: GemmRun, pad: int) -> float:
    """Modelled estimate of a gemm whose operands go through LDS, in rows of 32 channels and `pad` bytes more."""
    texts = ["s_waitcnt vmcnt(0)", "ds_write_b128 v1, v[4:7]", "s_waitcnt lgkmcnt(0)", "s_barrier"]
    texts += ["ds_read_b128 v[4:7], v1", "s_waitcnt lgkmcnt(0)"]
    added = [decode_one(slot) for slot in assemble(texts)]
    instructions, counts = [], dict(run.by_address)
    loads = 0
    for item in run.instructions:
        instructions.append(item)
        if item.row.name == "buffer_load_dwordx4" and run.by_address.get(item.address):
            # Addresses of their own, that no branch names.
            for number, extra in enumerate(added):
                place = -16 * (len(added) * item.address + number + 1)
                instructions.append(dataclasses.replace(extra, address=place))
                counts[place] = run.by_address[item.address]
            loads += run.by_address[item.address]
    return model_launch(
        instructions, counts, _with_lds(run.counters, loads, pad), run.traffic, touched_bytes=run.touched_bytes
    ).estimate_us


def _with_lds(counters: LaunchCounters, loads: int, pad: int) -> LaunchCounters:
    lane = np.arange(64)
    # As loaded: 4 lanes a row of 64 bytes. As multiplied: row l mod 16, 16 bytes at l div 16.
    written = (lane // 4 * (64 + pad) + lane % 4 * 16)[None]
    read = (lane % 16 * (64 + pad) + lane // 16 * 16)[None]
    lds = {}
    for kind, places in (("store", written), ("load", read)):
        phases, cycles = (int(part[0]) for part in phase_cycles(kind, 16, places, np.ones((1, 64), np.bool_)))
        lds[kind] = LdsTotals(loads, 64 * loads, 1024 * loads, phases * loads, cycles * loads)
    classes = dict(counters.by_class)
    classes["lds"] = classes.get("lds", 0) + 2 * loads
    return dataclasses.replace(counters, lds=lds, by_class=classes)
