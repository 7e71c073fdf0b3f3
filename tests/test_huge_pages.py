"""Large results in huge pages: what is asked for, and that the system hears it."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest
import torch

from spconv_compiler import arrays
from spconv_compiler.runtime import huge_pages

_HUGE = 1 << 21


@pytest.mark.parametrize("offset", [0, 1, 64, _HUGE - 1])
def test_only_whole_pages_inside_are_asked_for(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(huge_pages, "_advise", lambda: lambda address, nbytes: asked.append((address, nbytes)))
    address, nbytes = 16 * _HUGE + offset, 3 * _HUGE + 5
    huge_pages.prefer_huge_pages(address, nbytes)
    ((first, size),) = asked
    assert first % _HUGE == size % _HUGE == 0
    assert address <= first < address + _HUGE
    assert address + nbytes - _HUGE < first + size <= address + nbytes


def test_little_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_advise", lambda: pytest.fail("asked for a small block"))
    huge_pages.prefer_huge_pages(0, huge_pages.LEAST - 1)
    assert arrays.empty_like_kind(torch.ones(1), (64, 1024), "f32").shape == (64, 1024)


@pytest.mark.parametrize("dtype, item", [("f32", 4), ("bf16", 2)])
def test_a_large_result_is_asked_for_whole(monkeypatch: pytest.MonkeyPatch, dtype: str, item: int) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(arrays, "prefer_huge_pages", lambda *block: asked.append(block))
    made = arrays.empty_like_kind(torch.ones(1), (40_000, 64), dtype)
    assert asked == [(made.source.data_ptr(), 40_000 * 64 * item)]


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages")
def test_the_system_hears_it() -> None:
    made = arrays.empty_like_kind(torch.ones(1), (64 << 18,), "f32")
    assert "hg" in _flags(made.source.data_ptr() + (32 << 20))


def _flags(address: int) -> list[str]:
    """The kernel's flags of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        range_ = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if range_:
            inside = int(range_[1], 16) <= address < int(range_[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no mapping holds the address")
