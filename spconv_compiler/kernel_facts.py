"""What an AMD code object says of its kernels, and what assembly text says: the same facts, read from either.

The metadata is msgpack in a note of the object, YAML in the text ("Code Object Metadata" of LLVM's AMDGPU usage guide).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from spconv_compiler.errors import CodegenError
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import ObjectError

_NUMBERS = (
    ("kernarg_bytes", "kernarg_segment_size"),
    ("vgpr", "vgpr_count"),
    ("agpr", "agpr_count"),
    ("sgpr", "sgpr_count"),
    ("lds_bytes", "group_segment_fixed_size"),
    ("scratch_bytes", "private_segment_fixed_size"),
    ("vgpr_spills", "vgpr_spill_count"),
    ("sgpr_spills", "sgpr_spill_count"),
)


@dataclasses.dataclass(frozen=True)
class KernelArgument:
    """Where an argument lies in the kernel's argument block, in bytes; kind: "global_buffer" or "by_value"."""

    offset: int
    size: int
    kind: str


@dataclasses.dataclass(frozen=True)
class GpuKernel:
    """What the metadata says of one kernel.

    Attributes:
        arguments, kernarg_bytes: layout and size of the argument block.
        vgpr: vector registers of a lane, accumulation registers included; agpr: those; sgpr: scalar registers.
        lds_bytes: local memory of a workgroup. scratch_bytes: private memory of a lane, for spills.
        vgpr_spills, sgpr_spills: registers that did not fit.
        block: lanes of a workgroup.
    """

    arguments: tuple[KernelArgument, ...]
    kernarg_bytes: int
    vgpr: int
    agpr: int
    sgpr: int
    lds_bytes: int
    scratch_bytes: int
    vgpr_spills: int
    sgpr_spills: int
    block: int


def facts_of_object(code: bytes) -> dict[str, GpuKernel]:
    """The kernels of a linked code object, by name.

    Raises:
        CodegenError: it is no such object, or its metadata lacks a fact.
    """
    try:
        entries = CodeObject(code).metadata.get("amdhsa.kernels", [])
    except ObjectError as error:
        raise CodegenError(f"the linked code object cannot be read: {error}") from error
    return dict(_kernel(_undotted(entry)) for entry in entries)


def facts_of_text(isa: str) -> dict[str, GpuKernel]:
    """The kernels that the .amdgpu_metadata section of assembly text describes, by name.

    Raises:
        CodegenError: there is no such section, or it lacks a fact.
    """
    match = re.search(r"^\s*\.amdgpu_metadata\n(.*?)\n\s*\.end_amdgpu_metadata", isa, re.MULTILINE | re.DOTALL)
    if match is None:
        raise CodegenError("the assembly text has no .amdgpu_metadata section")
    entries = re.split(r"^  - ", match[1].split("amdhsa.target:")[0], flags=re.MULTILINE)[1:]
    return dict(_kernel(_parsed(entry)) for entry in entries)


def _undotted(value: Any) -> Any:
    """Keys of the metadata begin with a dot in every map."""
    if isinstance(value, dict):
        return {key.removeprefix("."): _undotted(item) for key, item in value.items()}
    return [_undotted(item) for item in value] if isinstance(value, list) else value


def _parsed(entry: str) -> dict[str, Any]:
    """One kernel's entry of the text: keys indented by 4 (the first stands behind the dash), list items by 6."""
    facts: dict[str, Any] = dict(re.findall(r"^(?: {4})?\.(\w+): +(\S+)$", entry, re.MULTILINE))
    listed = dict(re.findall(r"^(?: {4})?\.(\w+):\n((?: {6}.*\n?)+)", entry, re.MULTILINE))
    arguments = re.split(r"^ {6}- ", listed.get("args", ""), flags=re.MULTILINE)[1:]
    facts["args"] = [dict(re.findall(r"\.(\w+): +(\S+)", item)) for item in arguments]
    if "reqd_workgroup_size" in listed:
        facts["reqd_workgroup_size"] = re.findall(r"\d+", listed["reqd_workgroup_size"])
    return facts


def _kernel(facts: Mapping[str, Any]) -> tuple[str, GpuKernel]:
    try:
        arguments = tuple(
            KernelArgument(int(item["offset"]), int(item["size"]), item["value_kind"])
            for item in facts.get("args", ())
        )
        x, y, z = (int(size) for size in facts["reqd_workgroup_size"])
        numbers = {field: int(facts[key]) for field, key in _NUMBERS}
        return facts["name"], GpuKernel(arguments, **numbers, block=x * y * z)
    except (KeyError, TypeError, ValueError) as error:
        raise CodegenError(f"the metadata of a kernel lacks {error}:\n{facts}") from None
