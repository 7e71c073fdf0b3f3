"""The timing model: caches, the chain of one wave and the band, on cases worked out by hand."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_kernels import encode, make_kernel

from spconv_compiler import reference
from spconv_compiler.bench import frames
from spconv_compiler.sim import cache_model, chip, timing, validate, variants, wave_chain
from spconv_compiler.sim.access_counter import AccessCounter, Trace
from spconv_compiler.sim.cache_model import Traffic, replay
from spconv_compiler.sim.counters import LaunchCounters, count_launch
from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.reference_kernel import compacted, compile_reference, run_gemm, uncompacted
from spconv_compiler.sim.timing import Band, model_launch

LOAD, STORE, ATOMIC = 100, 200, 300
KINDS = {LOAD: "load", STORE: "store", ATOMIC: "atomic"}


def trace(*steps: tuple[int, int, Sequence[int]]) -> Trace:
    """From (workgroup, instruction, lines) in the order in which they ran."""
    groups, codes, lines = zip(*steps, strict=True)
    starts = np.cumsum([0, *map(len, lines)])
    flat = np.array([line for part in lines for line in part], np.uint64)
    return Trace(np.array(groups), np.zeros(len(steps), np.int64), np.array(codes), starts, flat)


# Caches.


def check_levels() -> None:
    """Workgroups 0, 8 and 16 are one XCD's first three; each has a unit of its own. Workgroup 1 is on another XCD."""
    found = replay(
        trace(
            (0, LOAD, [5, 6]),
            (0, LOAD, [5]),
            (1, LOAD, [7, 8, 9]),
            (8, LOAD, [9]),
            (8, LOAD, [5, 6]),
            (16, STORE, [5]),
            (16, ATOMIC, [77, 78]),
            (16, ATOMIC, [77]),
        ),
        KINDS,
        groups_per_unit=1,
    )
    assert (found.loads, found.l1_hits, found.l2_hits) == (6, 1, 2)
    assert (found.writes, found.atomics, found.written_hits) == (1, 3, 2)
    # 5, 6, 9, 77 and 78 are fetched; 5, 77 and 78 are changed.
    assert found.l2_requests == 6 - 1 + 4 and found.written_back == 3
    assert found.fetched == 5 and found.memory_lines == 5 + 3
    # Instructions whose farthest line came from L1, from L2, from memory.
    assert found.levels == {LOAD: [1, 1, 2]} and found.compute_units == 3


def check_stores() -> None:
    """A store fetches nothing; who comes later and needs the rest of the line does, once. Each workgroup has its L1."""
    found = replay(trace((0, STORE, [1, 2, 3]), (0, STORE, [1])), KINDS, 1)
    assert (found.writes, found.written_hits, found.fetched) == (4, 1, 0)
    assert found.written_back == 3 and found.memory_lines == 3
    later = ((8, LOAD, [1]), (8, STORE, [1]), (16, LOAD, [1]), (8, ATOMIC, [2]), (16, ATOMIC, [2]))
    found = replay(trace((0, STORE, [1, 2, 3]), *later), KINDS, 1)
    assert (found.l2_hits, found.written_hits, found.fetched) == (1, 3, 2)
    assert found.levels == {LOAD: [0, 1, 1]} and found.memory_lines == 2 + 3
    # A line that was given up is changed once more by each store that takes it again.
    many = list(range(chip.L2_LINES + 1))
    assert replay(trace((0, STORE, many), (0, STORE, [0])), KINDS, 1).memory_lines == len(many) + 1


def check_capacity() -> None:
    """32 KiB of lines twice over: all are found the second time; one more, and none is."""
    for count, hits in ((256, 256), (257, 0)):
        lines = list(range(count))
        found = replay(trace((0, LOAD, lines), (0, LOAD, lines)), KINDS, 1)
        assert (found.l1_hits, found.l2_hits) == (hits, len(lines) - hits)


def check_places() -> None:
    """Two workgroups a unit at most: the 65th on the XCD waits, and then finds the L1 of the unit it comes to."""
    steps = [(8 * number, LOAD, [1000 + number]) for number in range(65)]
    found = replay(trace(*steps, (8 * 64, LOAD, [1000])), KINDS, groups_per_unit=2)
    assert found.l1_hits == 1 and found.compute_units == 32
    spread = replay(trace((0, LOAD, [1]), (8, LOAD, [1])), KINDS, groups_per_unit=8)
    assert (spread.l1_hits, spread.l2_hits) == (0, 1)


# The chain of one wave.


def chain(text: str, latencies: dict[int, float] | None = None, counts: Any = None) -> float:
    """Likely cycles of one wave; latencies by number of the instruction."""
    instructions = decode(encode(f"{text}\ns_endpgm"), 0)
    by_number = {instructions[number].address: cycles for number, cycles in (latencies or {}).items()}
    ran = counts or [1] * len(instructions)
    by_address = {item.address: count for item, count in zip(instructions, ran, strict=True)}
    return wave_chain.wave_cycles(instructions, by_address, 1, by_number, "likely")


def check_chain() -> None:
    load = "buffer_load_dword v{}, v1, s[4:7], 0 offen"
    # Four cycles an instruction; a result of the vector unit is there after eight.
    assert chain("v_mov_b32_e32 v3, 0\nv_mov_b32_e32 v4, 0") == 12
    assert chain("v_mov_b32_e32 v3, 0\nv_mov_b32_e32 v4, v3") == 16
    assert chain("s_nop 4") == 5 * 4 + 4
    assert chain(f"{load.format(2)}\ns_waitcnt vmcnt(0)", {0: 500}) == 500 + 4
    # The second load is back at 4 + 100, the first at 500: loads come back in order.
    two = f"{load.format(2)}\n{load.format(3)}\n"
    assert chain(f"{two}s_waitcnt vmcnt(0)", {0: 500, 1: 100}) == 504
    assert chain(f"{two}s_waitcnt vmcnt(1)", {0: 500, 1: 900}) == 504
    assert chain(f"{two}s_waitcnt vmcnt(0)", {0: 500, 1: 900}) == 904 + 4
    # Independent MFMAs keep the matrix unit busy for 16 cycles each; a sum waits for all of the one before it.
    mfma = "v_mfma_f32_16x16x32_bf16 v[{0}:{1}], v[8:11], v[12:15], {2}\n"
    apart = mfma.format(16, 19, 0) + mfma.format(20, 23, 0) + mfma.format(24, 27, 0)
    assert chain(apart) == 2 * 16 + 4 + 4
    assert chain(mfma.format(16, 19, 0) + mfma.format(16, 19, "v[16:19]")) == 18 + 4 + 4
    assert chain("ds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)") == 69 + 4


def check_loop() -> None:
    """A loop that loads for its next turn: the load of 100 cycles is waited for behind 40 cycles of work."""
    load = "buffer_load_dword v2, v1, s[4:7], 0 offen"
    body = "s_waitcnt vmcnt(0)\nv_mov_b32_e32 v3, v2\n" + load + "\n" + "s_nop 0\n" * 6
    text = f"{body}s_cbranch_scc1 -11"
    # Ten turns. From the load to the end of a turn are 4 + 6 · 4 + 4 cycles; the rest of its latency is waited for.
    turns = [10] * 10 + [1]
    assert chain(text, {2: 100}, turns) == 10 * ((100 - 32) + 4 + 32) + 4
    # A load that is back in time costs nothing.
    assert chain(text, {2: 8}, turns) == 10 * (4 + 4 + 32) + 4


# The band.


def launch(
    text: str, *, groups: int = 1024, count: int = 1000, vgprs: int = 32
) -> tuple[list[Instruction], Any, LaunchCounters]:
    """A kernel of which every instruction ran `count` times in each of `groups` waves."""
    kernel = make_kernel(f"{text}\ns_endpgm", vgprs=vgprs)
    instructions = decode(kernel.code, kernel.address)
    by_address = {item.address: groups * count for item in instructions}
    return instructions, by_address, count_launch(kernel, instructions, by_address, groups=groups, block=64)


def band(text: str, traffic: Traffic | None = None, **more: Any) -> Band:
    return model_launch(*launch(text, **more), traffic or Traffic())


def check_matrix_bound() -> None:
    """1024 waves on 1024 SIMDs, a thousand MFMAs of 4 passes of 4 cycles each: 16,000 cycles at 2.4 GHz."""
    found = band("v_mfma_f32_16x16x32_bf16 v[16:19], v[8:11], v[12:15], 0\n")
    assert found.terms["fast"]["matrix"] == pytest.approx(16_000 / 2400)
    assert found.lower_us == pytest.approx(16_000 / 2400 + 1) and found.limited_by["fast"] == "matrix"
    assert band("v_mov_b32_e32 v3, 0").terms["fast"]["vector"] == pytest.approx(4_000 / 2400)


def check_memory_bound() -> None:
    """A tenth of a million lines an XCD: over 16 channels, and as bytes from the memory side."""
    lines = Traffic(loads=100_000, fetched=100_000)
    found = band("s_nop 0", lines, count=1)
    assert found.terms["fast"]["L2"] == pytest.approx(100_000 / 16 / 2400)
    assert found.terms["fast"]["MALL"] == pytest.approx(8 * 100_000 * 128 / 17e6)
    assert found.terms["slow"]["HBM"] == 0.0
    given = launch("s_nop 0", count=1)
    big = model_launch(*given, lines, touched_bytes=300 * 2**20)
    small = model_launch(*given, lines, touched_bytes=2**20)
    assert big.terms["fast"]["HBM"] == pytest.approx(8 * 100_000 * 128 / 8e6)
    assert (small.terms["likely"]["HBM"], small.terms["slow"]["HBM"]) == (0.0, pytest.approx(2**20 / 5.6e6))


def check_counters_bound() -> None:
    instructions, by_address, counted = launch("s_nop 0", count=1)
    given = dataclasses.replace(counted, atomic_segments=7_500_000)
    found = model_launch(instructions, by_address, given, Traffic())
    assert found.terms["likely"]["atomics"] == pytest.approx(100.0)
    lds = variants._with_lds(counted, 1_000_000, 0)
    found = model_launch(instructions, by_address, lds, Traffic())
    assert found.terms["fast"]["LDS"] == pytest.approx(sum(one.cycles for one in lds.lds.values()) / 256 / 2400)


def check_waiting() -> None:
    """Half of the waves fit: twice the time. 128 registers: four waves on a SIMD."""
    text = "s_waitcnt vmcnt(0)"
    times = {
        (groups, vgprs): band(text, groups=groups, vgprs=vgprs, count=1).terms["likely"]["latency"]
        for groups, vgprs in ((1024, 32), (8192, 32), (16384, 32), (4096, 128), (8192, 128))
    }
    alone = times[1024, 32]
    assert alone == pytest.approx(8 / 2200)
    assert times[8192, 32] == pytest.approx(alone) and times[16384, 32] == pytest.approx(2 * alone)
    assert times[4096, 128] == pytest.approx(alone) and times[8192, 128] == pytest.approx(2 * alone)


def check_last_round() -> None:
    """257 workgroups on 256 units: the likely time is that of two rounds, the lower bound does not know them."""
    text = "v_mov_b32_e32 v3, 0"
    one, more = (band(text, groups=groups).terms for groups in (256, 257))
    assert more["likely"]["vector"] == pytest.approx(2 * one["likely"]["vector"])
    assert more["fast"]["vector"] == pytest.approx(257 / 256 * one["fast"]["vector"])


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}


@pytest.mark.parametrize("name", CHECKS)
def test_model(name: str) -> None:
    CHECKS[name]()


def _fact(name: str, **values: float) -> dict[str, chip.Fact]:
    return {**chip.FACTS, name: dataclasses.replace(chip.FACTS[name], **values)}


# What is changed, and the check that must notice.
MUTATIONS: list[tuple[Any, str, Any, str]] = [
    (cache_model, "_by_group", lambda trace, kinds, xcd: RIGHT_GROUPS(trace, kinds, 1), "levels"),
    (cache_model, "_MEANS", {**cache_model._MEANS, "store": 3}, "stores"),
    (cache_model, "_MEANS", {**cache_model._MEANS, "atomic": 2}, "stores"),
    (chip, "L1_LINES", 255, "capacity"),
    (chip, "CHIPLETS", 4, "places"),
    (wave_chain, "_waited", lambda outstanding, most: max(outstanding, default=0.0), "chain"),
    (wave_chain, "wait_states", lambda item: 1, "chain"),
    (wave_chain, "_likely_predecessors", lambda blocks, counts: [None] * len(blocks), "loop"),
    (chip, "FACTS", _fact("mfma_pass", fast=8), "matrix_bound"),
    (chip, "SIMDS", 2, "matrix_bound"),
    (chip, "L2_CHANNELS", 32, "memory_bound"),
    (chip, "MALL_BYTES", 2**30, "memory_bound"),
    (chip, "FACTS", _fact("atomics", likely=150), "counters_bound"),
    (timing, "wave_cycles", lambda *_: 1.0, "waiting"),
    (chip, "COMPUTE_UNITS", 512, "last_round"),
]
RIGHT_GROUPS = cache_model._by_group


@pytest.mark.parametrize(("module", "name", "value", "check"), MUTATIONS, ids=[f"{m[1]}-{m[3]}" for m in MUTATIONS])
def test_changes_are_noticed(module: Any, name: str, value: Any, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, value)
    with pytest.raises(AssertionError):
        CHECKS[check]()


def test_the_line_unused_for_longest_goes() -> None:
    """Lines 0 to 255, 0 again, then one more: 1 goes, not 0."""
    lines = list(range(chip.L1_LINES))
    steps = trace((0, LOAD, lines), (0, LOAD, [0]), (0, LOAD, [999]), (0, LOAD, [0]))
    assert replay(steps, KINDS, 1).l1_hits == 2


def test_slow_is_slower() -> None:
    """Every fact leads to more time from fast to slow, whatever it is the number of."""
    text = "v_mfma_f32_16x16x32_bf16 v[16:19], v[8:11], v[12:15], 0\nbuffer_load_dword v2, v1, s[4:7], 0 offen"
    instructions, by_address, counted = launch(text)
    counted = dataclasses.replace(counted, atomic_segments=1000)
    traffic = Traffic(loads=1000, levels={instructions[1].address: [1, 1, 1]})
    found = model_launch(instructions, by_address, counted, traffic, touched_bytes=2**20)
    for name in found.terms["fast"]:
        assert found.terms["fast"][name] <= found.terms["likely"][name] <= found.terms["slow"][name], name
    assert found.lower_us < found.estimate_us < found.pessimistic_us
    assert str(found).startswith("modelled ") and "modelled" in found.to_json()["label"]
    for name, fact in chip.FACTS.items():
        rate = name in ("clock", "vmem_bytes", "l2_share", "mall_tb_s", "hbm_tb_s", "atomics")
        ordered = sorted((fact.fast, fact.likely, fact.slow), reverse=rate)
        assert [fact.fast, fact.likely, fact.slow] == ordered and fact.source, name


# The reference kernel and its variants.


@pytest.fixture(scope="module")
def table() -> Any:
    return frames.load_frame(frames.TINY, Path("no such folder")).table[:256]


@functools.cache
def reference_kernel() -> Kernel:
    return compile_reference(64, 64, 1)


def test_pair_lists(table: Any) -> None:
    for pairs, lists in ((compacted(table), reference.pairs(table)), (uncompacted(table), reference.pairs(table))):
        on = pairs.out_rows >= 0
        assert pairs.pairs == on.sum() == (table >= 0).sum() and len(pairs.in_rows) == 16 * pairs.tiles
        taps = np.repeat(pairs.tile_tap, 16)[on]
        assert (table[pairs.out_rows[on], taps] == pairs.in_rows[on]).all() and (np.diff(pairs.tile_tap) >= 0).all()
        assert len(lists) and (pairs.in_rows >= 0).all()
    assert uncompacted(table).tiles == 27 * 16 > compacted(table).tiles


def test_reference_kernel_is_counted_as_it_runs(table: Any) -> None:
    """All tiles of one tap: executed products and segments of atomics are known."""
    pairs = uncompacted(table[:, 13:14])
    assert pairs.tiles == 16 and pairs.pairs == 256
    run = run_gemm(reference_kernel(), pairs, 256, 64, 64)
    counted = run.counters
    assert counted.groups == 16 and counted.matrix.executed_macs == counted.matrix.useful_macs == 256 * 64 * 64
    # Every pair adds 64 floats: four segments of 64 bytes.
    assert counted.atomic_segments == 256 * 4 and counted.sample is not None and counted.sample.every == 8
    assert run.band.lower_us < run.band.estimate_us < run.band.pessimistic_us
    # Two workgroups were replayed: an instruction touches a line for each of its four rows.
    assert run.traffic.atomics == 2 * 16 * 4 and run.traffic.compute_units == 2


def test_k_major_weights_are_the_same_weights_elsewhere(table: Any) -> None:
    channels = 64
    size = 2 * channels * channels
    starts = np.arange(0, size, 16, dtype=np.uint64)
    moved = variants._k_major(starts, channels)
    assert sorted(moved.tolist()) == starts.tolist()
    # Column 3 of panel 1, channels 8 to 15: piece (1 · 8 + 1) · 16 + 3, and then row 16 + 3, second 16 bytes.
    assert variants._k_major(np.array([((1 * 8 + 1) * 16 + 3) * 16 + 5], np.uint64), channels)[0] == 19 * 128 + 16 + 5
    pairs = uncompacted(table[:, 13:14])
    kernel = reference_kernel()
    near, far = (run_gemm(kernel, pairs, 256, channels, 64, watch) for watch in (_plain, variants.k_major(channels)))
    assert far.counters.memory["vmem load"].lines_128 > near.counters.memory["vmem load"].lines_128
    assert far.counters.memory["vmem load"].bytes == near.counters.memory["vmem load"].bytes


def _plain(counter: AccessCounter, packed: Any) -> Any:
    return counter


def test_staging_through_lds_costs_time(table: Any) -> None:
    run = run_gemm(reference_kernel(), uncompacted(table[:, 13:14]), 256, 64, 64)
    assert variants.through_lds(run, 0) > run.band.estimate_us
    unpadded, padded = (variants._with_lds(run.counters, 1, pad).lds["load"].cycles for pad in (0, 32))
    assert unpadded > padded == 4


def test_validation_says_what_it_finds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(frames, "default_names", lambda data: (frames.TINY,))
    monkeypatch.setattr(validate, "SHAPES", (validate.Shape(800, 64, 5.0), validate.Shape(800, 64, 1e9)))
    monkeypatch.setattr(validate, "DENSITIES", (1.5,))
    assert validate.main(["--shapes", "--data", "no such folder"]) == 0
    printed = capsys.readouterr().out
    assert "all times modelled, never measured" in printed
    assert "published time inside the modelled band: 1 of 2" in printed and "0.00 to" in printed


def test_rankings_are_judged_by_the_published_order() -> None:
    made = variants.Ranking("what", 64, "a", "b", 10.0, 18.0, "1.8x", "how")
    assert made.ratio == pytest.approx(1.8) and made.ranked
    assert not dataclasses.replace(made, worse_us=10.1).ranked and not dataclasses.replace(made, worse_us=5.0).ranked
