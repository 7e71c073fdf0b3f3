"""What is read off PTX: arguments with their offsets, shared memory, block sizes."""

from __future__ import annotations

import pytest

from spconv_compiler.errors import CodegenError
from spconv_compiler.ptx_text import PtxArgument, note_dynamic_shared, ptx_kernels

TEXT = """.version 8.3
.target sm_90a
.visible .entry first(
    .param .u64 .ptr .global .align 16 first_param_0,
    .param .u32 first_param_1,
    .param .u64 first_param_2
)
.maxntid 256, 1, 1
.minnctapersm 2
{
    .shared .align 16 .b8 counts[1024];
    .shared .align 4 .b8 sums[16];
}
.visible .entry second()
.maxntid 64
{
}
"""


def test_kernels() -> None:
    found = ptx_kernels(note_dynamic_shared(TEXT, {"second": 98304}))
    assert list(found) == ["first", "second"]
    first = found["first"]
    assert first.arguments == (
        PtxArgument(0, 8, "global_buffer"), PtxArgument(8, 4, "by_value"), PtxArgument(16, 8, "by_value")
    )
    assert (first.block, first.lds_bytes, first.dynamic_lds_bytes) == (256, 1040, 0)
    assert (found["second"].block, found["second"].dynamic_lds_bytes) == (64, 98304)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no kernels"),
        (TEXT.replace(".maxntid 64\n", ""), "kernel second has no block size"),
        (TEXT.replace(".param .u32 first", ".param .b128 first"), "argument of type b128"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(CodegenError, match=message):
        ptx_kernels(text)
