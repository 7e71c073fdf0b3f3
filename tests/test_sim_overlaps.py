"""Lane moves and local reads in forms that only some kernels have, on both engines."""

from __future__ import annotations

import numpy as np
import pytest
from sim_run import STORE, WORDS, ZEROS, run


@pytest.mark.parametrize("address", ["v4", "v5"])
def test_a_read_of_two_places_may_overwrite_its_address(address: str) -> None:
    text = "\n".join(
        [
            "ds_write_b32 v1, v0",
            "ds_write_b32 v1, v1 offset:256",
            f"v_mov_b32_e32 {address}, v1",
            "s_waitcnt lgkmcnt(0)",
            f"ds_read2_b32 v[4:5], {address} offset1:64",
            "s_waitcnt lgkmcnt(0)",
            "v_lshl_add_u32 v2, v5, 8, v4",
            STORE,
        ]
    )
    lanes = np.arange(64)
    np.testing.assert_array_equal(run(text, WORDS, ZEROS, native=True, lds_bytes=512), (4 * lanes << 8) + lanes)


def test_lanes_of_several_waves_are_exchanged_at_once() -> None:
    text = f"ds_swizzle_b32 v2, v0 offset:swizzle(SWAP,8)\ns_waitcnt lgkmcnt(0)\n{STORE}"
    found = run(text, WORDS, np.zeros(192, np.uint32), native=True, block=192)
    np.testing.assert_array_equal(found, np.arange(192) ^ 8)
