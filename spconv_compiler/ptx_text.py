"""What PTX text says of its kernels, read without the compiler."""

from __future__ import annotations

import dataclasses
import re

from spconv_compiler.errors import CodegenError

_WIDTHS = {"b8": 1, "b16": 2, "b32": 4, "f32": 4, "b64": 8, "u32": 4, "u64": 8, "s32": 4, "s64": 8}
# Above a kernel, the code generator's caller notes the shared memory that a launch must ask for.
_DYNAMIC = "// dynamic shared memory of "


@dataclasses.dataclass(frozen=True)
class PtxArgument:
    """Where an argument lies among a kernel's arguments, in bytes; kind: "global_buffer" or "by_value"."""

    offset: int
    size: int
    kind: str


@dataclasses.dataclass(frozen=True)
class PtxKernel:
    """What PTX says of one kernel.

    Attributes:
        arguments: in order, at the offsets that a C compiler gives them.
        lds_bytes: shared memory of a block that is declared in the text.
        dynamic_lds_bytes: shared memory that a launch asks for.
        block: lanes of a block.
    """

    arguments: tuple[PtxArgument, ...]
    lds_bytes: int
    dynamic_lds_bytes: int
    block: int


def note_dynamic_shared(text: str, sizes: dict[str, int]) -> str:
    """The text with a note of the shared memory that launches of kernels must ask for, in bytes by name."""
    return "".join(f"{_DYNAMIC}{name}: {size}\n" for name, size in sorted(sizes.items())) + text


def ptx_kernels(text: str) -> dict[str, PtxKernel]:
    """The entries of PTX text by name.

    Raises:
        CodegenError: there is none, or one lacks its block size.
    """
    found = {}
    dynamic = dict(re.findall(rf"^{_DYNAMIC}(\w+): (\d+)$", text, re.MULTILINE))
    entries = re.split(r"^\.visible \.entry ", text, flags=re.MULTILINE)[1:]
    for entry in entries:
        head, _, body = entry.partition("{")
        name = head[: head.index("(")].strip()
        size = re.search(r"\.(?:maxntid|reqntid) (\d+)(?:, (\d+), (\d+))?", head)
        if size is None:
            raise CodegenError(f"kernel {name} has no block size in its PTX")
        block = int(size[1]) * int(size[2] or 1) * int(size[3] or 1)
        shared = re.findall(r"\.shared .*?\.b8 \w+\[(\d+)\]", body)
        found[name] = PtxKernel(_arguments(head), sum(map(int, shared)), int(dynamic.get(name, 0)), block)
    if not found:
        raise CodegenError("the PTX text has no kernels")
    return found


def _arguments(head: str) -> tuple[PtxArgument, ...]:
    arguments, offset = [], 0
    for type_, pointer in re.findall(r"\.param \.(\w+)( \.ptr)?", head):
        if type_ not in _WIDTHS:
            raise CodegenError(f"a kernel takes an argument of type {type_}; accepted: {', '.join(_WIDTHS)}")
        size = _WIDTHS[type_]
        offset = -(-offset // size) * size
        arguments.append(PtxArgument(offset, size, "global_buffer" if pointer else "by_value"))
        offset += size
    return tuple(arguments)
