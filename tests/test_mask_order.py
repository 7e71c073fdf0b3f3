"""What bench/mask_order.py counts of sorted rows, against loops."""

from __future__ import annotations

import numpy as np
import pytest
from conv_cases import voxels

from spconv_compiler import reference
from spconv_compiler.bench import frames, mask_order
from spconv_compiler.schedules.deal import Deal


def present_of(rows: int, size: int) -> np.ndarray:
    return np.asarray(reference.kernel_map(voxels(rows, size)) >= 0)


def test_taps_together_and_shares_count_what_loops_count() -> None:
    """The last block of 16 rows is not full, and pays for its own rows alone."""
    present = present_of(1003, 14)
    order = np.argsort(mask_order.keys(present, (3, 3, 3)), kind="stable")
    executed, work = 0, []
    for first in range(0, 1003, 16):
        rows = present[order[first : first + 16]]
        taps = sum(any(row[tap] for row in rows) for tap in range(27))
        work.append(taps)
        executed += taps * len(rows)
    assert mask_order.together(present, order, 16) == pytest.approx(executed / present.sum())
    shares = Deal.over(256, 8, 2, 16, 3).count(len(work))
    sizes = [len(work) // shares + (share < len(work) % shares) for share in range(shares)]
    ends = np.cumsum(sizes)
    each = [sum(work[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    assert mask_order.busiest(present, order, 256) == pytest.approx(max(each) / np.mean(each))


def test_keys_bring_like_masks_together() -> None:
    """Better than the mask as the key, which is better than the order of voxels; equal masks have equal keys."""
    frame = frames.Frame("some", voxels(4000, 34), (34, 34, 34), reference.kernel_map(voxels(4000, 34)))
    found, present = mask_order.figures(frame), frame.table >= 0
    unsorted = mask_order.together(present, np.arange(4000), 16)
    assert 1 < found["all_bits"][16] < found["mask"][16] < unsorted
    assert found["all_bits"][16] <= found["upper_bits"][16] and list(found["all_bits"].values()) == sorted(
        found["all_bits"].values()
    )
    masks, keys = mask_order.mask_keys(present), mask_order.keys(present, (3, 3, 3))
    assert len(set(zip(masks.tolist(), keys.tolist(), strict=True))) == len(set(masks.tolist()))
    assert (mask_order.keys(present, (3, 3, 3), 16) == keys >> 8).all()


def test_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert mask_order.main(["generated-tiny"]) == 0
    assert "generated-tiny" in capsys.readouterr().out
    assert mask_order.main(["none-such"]) == 1
