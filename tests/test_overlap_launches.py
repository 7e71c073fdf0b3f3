"""Kernels for sm_90 wait for the work in front of them before they touch memory, and let the next one come then."""

from __future__ import annotations

import re

import pytest

from spconv_compiler.compiler import compile_options, conv_options
from spconv_compiler.frame_options import FrameOptions
from spconv_compiler.level_options import AnyOptions

# What reads or writes memory, of all workgroups or of one, and what waits for somebody.
_TOUCHES = re.compile(r"^\s*(?:@\S+\s+)?(?:ld|st|atom|red|cp|mbarrier|fence|bar|barrier|shfl|vote|wgmma)[.;]", re.M)


def test_a_frame_is_found_before_the_wait_and_read_behind_it() -> None:
    """One lane reads what the host has written; coordinates, and all that is written, come behind the wait."""
    text = compile_options(FrameOptions("sm_90", by_words=True)).object.decode()
    before, wait, after = text.partition("griddepcontrol.wait;")
    assert wait and after.lstrip().startswith("griddepcontrol.launch_dependents;")
    assert before.count("ld.global") == 1 and before.rstrip().endswith("bar.sync \t0;")
    assert not re.search(r"^\s*(?:@\S+\s+)?(?:st\.global|atom|red)", before, re.MULTILINE)
    assert after.count("ld.global") == 4 and "param_1" not in after


@pytest.mark.parametrize(
    "options",
    [
        conv_options(3, 16, 16, 32, dtype="f16", target="sm_90", mapper="z_delta"),
        conv_options(3, 16, 16, 32, dtype="f16", target="sm_90", mapper="dense_grid"),
        FrameOptions("sm_90"),
    ],
    ids=["search", "grid", "frame"],
)
def test_nothing_comes_before_the_wait(options: AnyOptions) -> None:
    text = compile_options(options).object.decode()
    entries = re.split(r"^\.visible \.entry ", text, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        name, body = entry.split("(", 1)[0], entry.partition("{")[2]
        # Parameters are no memory: they come with the launch.
        body = re.sub(r"ld\.param\S*", "parameter", body)
        before, wait, after = body.partition("griddepcontrol.wait;")
        between, launch, after = after.partition("griddepcontrol.launch_dependents;")
        assert wait and launch, name
        assert not _TOUCHES.search(before + between), name
        assert not re.search(r"\bbra\b|^\$", before + between, re.MULTILINE), name
        assert _TOUCHES.search(after), name
    # A record's place is told from lane to lane of a wave by memory: each of the four that a lane has.
    for entry in entries:
        if entry.startswith("sort_digit"):
            assert entry.count("bar.warp.sync") == 4
