"""Device memory of the simulator: host copies, life of allocations, and the rules of races on both engines."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim_kernels import PROLOGUE, make_kernel
from test_sim_faults import FAULTS

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim.errors import Fault, LaunchFault
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.memory import Memory
from spconv_compiler.sim.native.machine import NativeMachine

ENGINES = pytest.mark.parametrize("make", [Machine, NativeMachine])


def fault(index: int, reason: str) -> Exception:
    return Fault(f"lane {index}: {reason}")


def address(start: int, *offsets: int) -> Any:
    return np.array([start + offset for offset in offsets], np.uint64)


# The host's side.


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("size", range(10))
def test_copies_mark_single_bytes(start: int, size: int) -> None:
    memory = Memory()
    target = memory.allocate("target", 15)
    values = np.arange(1, size + 1, dtype=np.uint8)
    memory.copy_in(target.address + start, values)
    inside = (np.arange(15) >= start) & (np.arange(15) < start + size)
    np.testing.assert_array_equal(memory.initialised(target), inside)
    np.testing.assert_array_equal(memory.copy_out(target.address + start, size), values)
    with pytest.raises(Fault, match=rf"copy to the host .*nobody wrote: byte {start + size} of target \(15 bytes\)"):
        memory.copy_out(target.address + start, size + 1)


def test_fill_and_copies_out_of_bounds() -> None:
    memory = Memory()
    target = memory.allocate("target", 10)
    memory.fill(target.address, 7, 10)
    np.testing.assert_array_equal(memory.read_bytes(target), np.full(10, 7))
    for attempt in (
        lambda: memory.fill(target.address + 1, 0, 10),
        lambda: memory.copy_in(target.address, np.zeros(11, np.uint8)),
        lambda: memory.copy_out(target.address, 11),
    ):
        with pytest.raises(Fault, match="out of bounds: address 0x[0-9a-f]+, 0 bytes past the end of target"):
            attempt()


def test_a_freed_allocation() -> None:
    memory = Memory()
    first, second = memory.allocate("first", 5000), memory.allocate("second", 100)
    memory.write_array(first, np.ones(5000, np.uint8))
    memory.write_array(second, np.ones(100, np.uint8))
    memory.free(first)
    assert memory.allocations == (second,)
    assert memory.initialised(second).all()
    assert not memory._cells[: (second.address - memory.base) // 4].any()
    with pytest.raises(Fault, match=r"byte 8 of a freed allocation, first \(5000 bytes\)"):
        memory.copy_in(first.address + 8, np.ones(1, np.uint8))
    with pytest.raises(LaunchFault, match="first at 0x[0-9a-f]+ is not allocated"):
        memory.free(first)
    third = memory.allocate("third", 5000)
    assert third.address > second.address
    assert not memory.initialised(third).any()


def test_partial_last_word() -> None:
    memory = Memory()
    target = memory.allocate("target", 7)
    memory.write_array(target, np.arange(7, dtype=np.uint8))
    memory.begin_launch(1)
    who = memory.begin_epoch(np.array([0]))
    assert memory.load(address(target.address, 6), 1, who, fault)[0, 0] == 6
    with pytest.raises(Fault, match="out of bounds: byte 4 of target"):
        memory.load(address(target.address, 4), 4, who, fault)
    with pytest.raises(Fault, match="out of bounds: address 0x[0-9a-f]+, 0 bytes past the end"):
        memory.load(address(target.address, 7), 1, who, fault)


def test_atomics_return_what_each_lane_found() -> None:
    memory = Memory()
    target = memory.allocate("target", 16)
    memory.write_array(target, np.array([10, 0, 0, 0], np.uint32))
    memory.begin_launch(1)
    who = memory.begin_epoch(np.zeros(4, np.int64))
    places = address(target.address, 0, 4, 0, 0)
    old = memory.update(places, np.add, np.uint32, np.array([1, 2, 3, 4], np.uint32), who, fault)
    np.testing.assert_array_equal(old, [10, 0, 11, 14])
    np.testing.assert_array_equal(memory.read_bytes(target).view(np.uint32), [18, 2, 0, 0])


def test_segments_run_out() -> None:
    memory = Memory()
    memory.begin_launch(4)
    memory.next_segment = rules.MANY - 7
    memory.begin_epoch(np.array([5]))
    with pytest.raises(LaunchFault, match="more than 16777214 segments"):
        memory.begin_epoch(np.array([5]))


# The rules of races, against a list of all accesses.


@dataclasses.dataclass(frozen=True)
class Touch:
    group: int
    wave: int
    epoch: int
    kind: str

    def races(self, other: Touch) -> bool:
        """Whether a later access is neither in order with this one nor compatible."""
        ordered = self.group == other.group and (self.wave == other.wave or self.epoch < other.epoch)
        return not ordered and (self.kind != other.kind or self.kind == "write")


class OneWord:
    """A word of memory that waves of three workgroups touch."""

    def __init__(self, waves: int) -> None:
        self.memory = Memory()
        self.target = self.memory.allocate("word", 4)
        self.memory.write_array(self.target, np.zeros(1, np.uint32))
        self.waves = waves
        self.begin()

    def begin(self) -> None:
        self.memory.begin_launch(self.waves)
        self.epochs = [0, 0, 0]
        self.first = [int(n) for n in self.memory.begin_epoch(np.arange(3))]

    def barrier(self, group: int) -> None:
        self.epochs[group] += 1
        if self.waves > 1:
            self.first[group] = int(self.memory.begin_epoch(np.array([group]))[0])

    def touch(self, group: int, wave: int, kind: str) -> bool:
        """Whether the memory lets it pass."""
        place, who = address(self.target.address, 0), np.array([self.first[group] + wave])
        try:
            if kind == "read":
                self.memory.load(place, 4, who, fault)
            elif kind == "update":
                self.memory.update(place, np.add, np.uint32, np.ones(1, np.uint32), who, fault)
            else:
                self.memory.store(place, 4, np.ones((1, 1), np.uint32), np.ones((1, 1), np.bool_), who, fault)
        except Fault:
            return False
        return True


@pytest.mark.parametrize("waves", [1, 2, 3])
def test_races_of_random_accesses(waves: int) -> None:
    """No access in order is refused, and every race is found."""
    rng, word = random.Random(waves), OneWord(waves)
    races = clean = 0
    for _ in range(2500):
        word.begin()
        history: list[Touch] = []
        for _ in range(rng.randrange(2, 7)):
            group = rng.choice([0, 0, 0, 1, 2])
            if rng.random() < 0.4:
                word.barrier(group)
            now = Touch(group, rng.randrange(waves), word.epochs[group], rng.choice(["read", "update", "write"]))
            race = any(earlier.races(now) for earlier in history)
            assert word.touch(now.group, now.wave, now.kind) != race, (history, now)
            history.append(now)
            races, clean = races + race, clean + (not race)
            if race:
                break
    assert races > 500 and clean > 2000


# Kernels that break exactly one rule, and their neighbours that break none, on both engines.

XOR = "v_xor_b32_e32 v3, 0x100, v1\n"
STORE, STORE_SAME = "buffer_store_dword v0, v1, s[8:11], 0 offen\n", "buffer_store_dword v4, v3, s[8:11], 0 offen\n"
LOAD, ATOMIC = "buffer_load_dword v2, v3, s[8:11], 0 offen\n", "buffer_atomic_add v0, v3, s[8:11], 0 offen\n"
WAIT, BARRIER = "s_waitcnt vmcnt(0)\n", "s_waitcnt vmcnt(0)\ns_barrier\n"
SAME = "v_and_b32_e32 v3, 0xfc, v1\nv_mov_b32_e32 v4, 7\n"
SCALAR = "s_load_dword s16, s[14:15], 0x0\ns_waitcnt lgkmcnt(0)\n"
ANOTHER_WAVE, ANOTHER_GROUP = "without a barrier between: byte", "in this launch: byte"
WAVES_MEET = f"another wave (reads|writes) what this one (writes|reads) {ANOTHER_WAVE}"
# Name: (code, workgroups, message or ""). Two waves; the target is initialised, 512 bytes. Which access of a racing
# pair comes second depends on the engine: one runs waves in step, the other one after the other.
KERNELS = {
    "own words": (STORE, 1, ""),
    "same words": (SAME + STORE_SAME, 1, f"another wave writes what this one writes {ANOTHER_WAVE} 0 of target"),
    "read after barrier": (STORE + BARRIER + XOR + LOAD, 1, ""),
    "read without barrier": (STORE + XOR + WAIT + LOAD, 1, WAVES_MEET),
    "write after read and barrier": (XOR + LOAD + BARRIER + STORE, 1, ""),
    "write after read": (XOR + LOAD + WAIT + STORE, 1, WAVES_MEET),
    "write, read, write": (
        STORE + BARRIER + XOR + LOAD + WAIT + STORE,
        1,
        WAVES_MEET,
    ),
    "write, read, write, with barriers": (STORE + BARRIER + XOR + LOAD + BARRIER + STORE, 1, ""),
    "atomics of two waves": (SAME + ATOMIC, 1, ""),
    "atomics, read after barrier": (SAME + ATOMIC + BARRIER + LOAD, 1, ""),
    "atomics, read": (SAME + ATOMIC + WAIT + LOAD, 1, f"another wave (updates|reads|writes) what .* {ANOTHER_WAVE}"),
    "reads of two workgroups": (SAME + LOAD, 2, ""),
    "atomics of two workgroups": (SAME + ATOMIC, 2, ""),
    "writes of two workgroups": (STORE, 2, f"another workgroup writes what this one writes {ANOTHER_GROUP}"),
    "write and read of two workgroups": (
        STORE + BARRIER + XOR + LOAD,
        2,
        f"another workgroup (writes|reads) what this one (writes|reads) {ANOTHER_GROUP}",
    ),
    "atomics and reads of two workgroups": (
        SAME + LOAD + BARRIER + ATOMIC,
        2,
        f"another workgroup (reads|updates|writes) what this one (updates|reads) {ANOTHER_GROUP}",
    ),
    "device scope": (SAME + ATOMIC + LOAD.strip() + " sc1\n", 2, ""),
    "device scope against a plain store": (
        SAME + LOAD.strip() + " sc1\n" + BARRIER + STORE,
        2,
        f"another workgroup (updates|writes) what this one (writes|updates) {ANOTHER_GROUP}",
    ),
    "scalar load of what was written": (STORE + BARRIER + SCALAR, 1, "a scalar load of what this launch writes"),
    "scalar load of what others wrote before": (SCALAR, 2, ""),
}


def run(make: Callable[..., Any], code: str, groups: int, **options: Any) -> np.ndarray:
    machine = make({"k": make_kernel(f"{PROLOGUE}{code}s_endpgm", **options)}, 10_000)
    source = machine.memory.allocate("source", 512, writable=False)
    target = machine.memory.allocate("target", 512)
    for each in (source, target):
        machine.memory.write_array(each, np.zeros(128, np.uint32))
    machine.launch("k", [groups], 128, [source, target])
    return machine.memory.read_bytes(target).view(np.uint32)


@ENGINES
@pytest.mark.parametrize("name", KERNELS)
def test_races(name: str, make: Callable[..., Any]) -> None:
    code, groups, message = KERNELS[name]
    if not message:
        run(make, code, groups)
        return
    with pytest.raises(Fault, match=rf"workgroup \d+, wave \d+.*: (race: )?{message}"):
        run(make, code, groups)


# With one wave after the other, what is found first differs.
NATIVE_MESSAGES = {
    "LDS read without barrier": "nobody wrote: byte 256 of local memory",
    "LDS write after read": "race: another wave writes what this one reads without a barrier",
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_the_native_engine(name: str) -> None:
    """The kernels of test_sim_faults.py, with the same messages."""
    text, options, message = FAULTS[name]
    message = NATIVE_MESSAGES.get(name, message)
    given = dict(options)
    groups, block, bare = given.pop("groups", 1), given.pop("block", 64), given.pop("bare", False)
    code = f"{'' if bare else PROLOGUE}{text}s_endpgm"
    machine = NativeMachine({"k": make_kernel(code, **given)}, 10_000)
    source = machine.memory.allocate("source", 256, writable=False)
    target = machine.memory.allocate("target", 256)
    machine.memory.write_array(source, np.arange(64, dtype=np.uint32))
    with pytest.raises(Fault, match=rf"(?s)^k: 0x[0-9a-f]+: .*workgroup \d+, wave \d+.*{message}"):
        machine.launch("k", [groups], block, [source, target])


@ENGINES
def test_use_after_free(make: Callable[..., Any]) -> None:
    machine = make({"k": make_kernel(f"{PROLOGUE}{STORE}s_endpgm")}, 10_000)
    source, target = machine.memory.allocate("source", 256), machine.memory.allocate("target", 256)
    machine.memory.free(target)
    with pytest.raises(Fault, match=r"lane 0: out of bounds: byte 0 of a freed allocation, target \(256 bytes\)"):
        machine.launch("k", [1], 64, [source, target])


@ENGINES
def test_launches_are_in_order(make: Callable[..., Any]) -> None:
    """What one launch wrote another may read and overwrite."""
    machine = make({"k": make_kernel(f"{PROLOGUE}{STORE}{BARRIER}{XOR}{LOAD}s_endpgm")}, 10_000)
    source, target = machine.memory.allocate("source", 512), machine.memory.allocate("target", 512)
    for _ in range(3):
        machine.launch("k", [1], 128, [source, target])
    np.testing.assert_array_equal(machine.memory.copy_out(target.address, 512).view(np.uint32), np.arange(128))


@pytest.mark.parametrize("threads", [1, 2])
def test_atomics_of_many_workgroups_lose_nothing(threads: int) -> None:
    """Integers and floats that sum exactly: every workgroup adds to the same 64 words."""
    add = "buffer_atomic_add v4, v3, s[8:11], 0 offen\n"
    float_add = "v_mov_b32_e32 v4, 1.0\nbuffer_atomic_add_f32 v4, v3, s[8:11], 0 offen offset:256\n"
    kernel = make_kernel(f"{PROLOGUE}v_and_b32_e32 v3, 0xfc, v1\nv_mov_b32_e32 v4, 3\n{add}{float_add}s_endpgm")
    machine = NativeMachine({"k": kernel}, threads=threads)
    source, target = machine.memory.allocate("source", 512), machine.memory.allocate("target", 512)
    machine.memory.write_array(target, np.zeros(128, np.uint32))
    machine.launch("k", [5000], 128, [source, target])
    found = machine.memory.copy_out(target.address, 512)
    np.testing.assert_array_equal(found[:256].view(np.uint32), np.full(64, 30_000))
    np.testing.assert_array_equal(found[256:].view(np.float32), np.full(64, 10_000))


def test_memory_is_not_used_up() -> None:
    """Data and cells cost what is allocated, and nothing once it is freed."""
    memory, page = Memory(), 4096

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * page

    before, size = resident(), 64 << 20
    big = memory.allocate("big", size)
    memory.fill(big.address, 1, size)
    used = resident() - before
    assert 1.9 * size < used < 2.1 * size
    memory.free(big)
    assert resident() - before < 0.1 * size
