"""Arguments of kernels in memory: every byte where the metadata says, nothing that does not fit."""

from __future__ import annotations

import ctypes

import pytest

from spconv_compiler.errors import LaunchError
from spconv_compiler.ptx_text import PtxArgument
from spconv_compiler.runtime.argument_block import ArgumentBlock


def slots(*places: tuple[int, int]) -> list[PtxArgument]:
    return [PtxArgument(offset, size, "by_value") for offset, size in places]


def filled(block: ArgumentBlock, values: list[int]) -> bytes:
    block.fill(values)
    return ctypes.string_at(block.address, block.nbytes)


def test_values_lie_at_their_offsets() -> None:
    block = ArgumentBlock("k", slots((0, 8), (8, 4), (16, 8), (24, 2)), 26)
    expected = (0x1122334455667788).to_bytes(8, "little") + b"\x05\0\0\0" + bytes(4) + b"\xff" * 8 + b"\x02\x01"
    assert filled(block, [0x1122334455667788, 5, 2**64 - 1, 0x0102]) == expected


def test_negative_numbers_are_in_two_s_complement() -> None:
    block = ArgumentBlock("k", slots((0, 4), (8, 8)), 16)
    assert filled(block, [-1, -2]) == b"\xff" * 4 + bytes(4) + (2**64 - 2).to_bytes(8, "little")
    # What was there before does not stay.
    assert filled(block, [0, 0]) == bytes(16)


@pytest.mark.parametrize("value", [2**32, -(2**31) - 1])
def test_numbers_that_do_not_fit_are_named(value: int) -> None:
    with pytest.raises(LaunchError, match=f"kernel k: argument 1 is {value}; accepted: 4 bytes"):
        ArgumentBlock("k", slots((0, 8), (8, 4)), 12).fill([0, value])


def test_the_number_of_arguments_counts() -> None:
    with pytest.raises(LaunchError, match="kernel k takes 1 arguments; given: 2"):
        ArgumentBlock("k", slots((0, 8)), 8).fill([1, 2])


@pytest.mark.parametrize("places", [((0, 8), (4, 4)), ((0, 8), (8, 8)), ((0, 3),)])
def test_places_that_overlap_or_stick_out_are_refused(places: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(LaunchError, match=r"argument \d takes bytes"):
        ArgumentBlock("k", slots(*places), 12)
