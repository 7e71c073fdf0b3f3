"""Linked AMD GPU code objects: ELF, symbols, kernel descriptors and metadata.

Layouts: the ELF specification, and "Code Object" and "Kernel Descriptor" of LLVM's AMDGPU usage guide.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from typing import Any

from spconv_compiler.sim.errors import ObjectError
from spconv_compiler.sim.msgpack import unpack

MACHINE_AMDGPU = 224
GFX950 = 0x4F
OS_ABI_HSA = 64
_MACHINE_MASK = 0xFF
_NOTE_METADATA = 32
_SECTION_SYMBOLS, _SECTION_NOTE, _SECTION_NOBITS = 2, 7, 8
_DESCRIPTOR_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Argument:
    """Where a kernel argument lies in the argument block, in bytes; kind: "global_buffer" or "by_value"."""

    offset: int
    size: int
    kind: str


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """The facts of a kernel descriptor.

    Attributes:
        lds_bytes, scratch_bytes, kernarg_bytes: per workgroup, per lane, per launch.
        entry: address of the first instruction.
        vgprs: vector registers of a lane, accumulation registers included. accum_offset: where those begin.
        user_sgprs: how many are set before the workgroup's numbers. properties: which of them hold what.
        group_ids: whether the workgroup's x, y, z follow. workgroup_info: whether one more follows them.
        lane_ids: 0: v0 holds x; 1, 2: y, z as well (packed, ten bits each).
        float_mode: rounding and denormals. ieee, dx10_clamp: the flags of MODE.
    """

    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    entry: int
    vgprs: int
    accum_offset: int
    user_sgprs: int
    properties: int
    group_ids: tuple[bool, bool, bool]
    workgroup_info: bool
    lane_ids: int
    float_mode: int
    ieee: bool
    dx10_clamp: bool
    kernarg_preload: int


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel: code bytes from `address` on, descriptor, and what the metadata says of it."""

    name: str
    address: int
    code: bytes
    descriptor: Descriptor
    arguments: tuple[Argument, ...]
    block: tuple[int, int, int] | None
    max_lanes: int
    sgprs: int
    agprs: int


@dataclasses.dataclass(frozen=True)
class _Section:
    kind: int
    address: int
    offset: int
    size: int
    link: int
    item_bytes: int


@dataclasses.dataclass(frozen=True)
class _Symbol:
    address: int
    size: int
    section: int


def find_kernel(kernels: Mapping[str, Kernel], name: str) -> Kernel:
    """The kernel `name`.

    Raises:
        ObjectError: there is none.
    """
    if name not in kernels:
        raise ObjectError(f"the code object has no kernel {name!r}; it has: {', '.join(kernels) or 'none'}")
    return kernels[name]


class CodeObject:
    """A linked code object for gfx950, loaded from its bytes.

    Attributes:
        kernels: by name.
        metadata: the whole note: maps, lists, texts and numbers.
        target: the target that the metadata names.

    Raises:
        ObjectError: not an ELF of this kind, damaged, or its parts contradict each other.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._sections = self._read_header()
        symbols = self._read_symbols()
        self.metadata = self._read_metadata()
        self.target = str(self.metadata.get("amdhsa.target", ""))
        self.kernels: dict[str, Kernel] = {}
        for entry in _listed(self.metadata, "amdhsa.kernels"):
            kernel = self._kernel(entry, symbols)
            self.kernels[kernel.name] = kernel

    def _take(self, offset: int, size: int, what: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > len(self._data):
            raise ObjectError(
                f"truncated code object: {what} takes bytes {offset} to {offset + size} of {len(self._data)}"
            )
        return self._data[offset : offset + size]

    def _read_header(self) -> list[_Section]:
        head = self._take(0, 64, "the ELF header")
        if head[:4] != b"\x7fELF":
            raise ObjectError(f"no code object: the file begins with {head[:4].hex(' ')}, an ELF with 7f 45 4c 46")
        if head[4] != 2 or head[5] != 1:
            raise ObjectError(f"ELF class {head[4]}, byte order {head[5]}; accepted: 2 (64 bits), 1 (little endian)")
        kind, machine = struct.unpack_from("<HH", head, 16)
        sections_at, flags = struct.unpack_from("<Q", head, 40)[0], struct.unpack_from("<I", head, 48)[0]
        item, count = struct.unpack_from("<HH", head, 58)
        if machine != MACHINE_AMDGPU:
            raise ObjectError(f"ELF for machine {machine}; accepted: {MACHINE_AMDGPU} (AMD GPU)")
        if head[7] != OS_ABI_HSA or kind != 3:
            raise ObjectError(f"ELF of OS ABI {head[7]}, type {kind}; accepted: {OS_ABI_HSA} (HSA), 3 (linked)")
        if flags & _MACHINE_MASK != GFX950:
            raise ObjectError(f"code object for GPU 0x{flags & _MACHINE_MASK:02x}; accepted: 0x{GFX950:02x} (gfx950)")
        if item != 64:
            raise ObjectError(f"section headers of {item} bytes; accepted: 64")
        table = self._take(sections_at, 64 * count, "the section table")
        sections = []
        for index in range(count):
            _, kind, _, address, offset, size, link, _, _, item = struct.unpack_from("<IIQQQQIIQQ", table, 64 * index)
            sections.append(_Section(kind, address, offset, size, link, item))
        return sections

    def _contents(self, section: _Section, what: str) -> bytes:
        if section.kind == _SECTION_NOBITS:
            raise ObjectError(f"{what} lies in a section without contents")
        return self._take(section.offset, section.size, what)

    def _read_symbols(self) -> dict[str, _Symbol]:
        symbols = {}
        for section in self._sections:
            if section.kind != _SECTION_SYMBOLS:
                continue
            table = self._contents(section, "the symbol table")
            if section.link >= len(self._sections):
                raise ObjectError(f"the symbol table takes names from section {section.link}, which is not there")
            names = self._contents(self._sections[section.link], "the symbol names")
            for at in range(0, len(table) - 23, 24):
                name, _, _, index, address, size = struct.unpack_from("<IBBHQQ", table, at)
                end = names.find(b"\0", name)
                if end < 0:
                    raise ObjectError(f"the name of symbol {at // 24} lies outside the string table")
                symbols[names[name:end].decode(errors="replace")] = _Symbol(address, size, index)
        return symbols

    def _read_metadata(self) -> dict[str, Any]:
        for section in self._sections:
            if section.kind != _SECTION_NOTE:
                continue
            data, at = self._contents(section, "a note"), 0
            while at + 12 <= len(data):
                name_bytes, size, kind = struct.unpack_from("<III", data, at)
                name = data[at + 12 : at + 12 + name_bytes].rstrip(b"\0")
                at += 12 + -(-name_bytes // 4) * 4
                if name == b"AMDGPU" and kind == _NOTE_METADATA:
                    if at + size > len(data):
                        raise ObjectError(
                            f"truncated code object: the metadata has {size} bytes, left: {len(data) - at}"
                        )
                    found = unpack(data[at : at + size])
                    if isinstance(found, dict):
                        return found
                    raise ObjectError("the metadata is not a map")
                at += -(-size // 4) * 4
        raise ObjectError("the code object has no metadata note (AMDGPU, type 32)")

    def _at_symbol(self, symbol: _Symbol, name: str) -> bytes:
        if not 0 < symbol.section < len(self._sections):
            raise ObjectError(f"symbol {name} lies in section {symbol.section}, which is not there")
        section = self._sections[symbol.section]
        start = symbol.address - section.address
        if start < 0 or start + symbol.size > section.size:
            raise ObjectError(f"symbol {name} lies outside its section")
        return self._take(section.offset + start, symbol.size, f"symbol {name}")

    def _kernel(self, entry: dict[str, Any], symbols: dict[str, _Symbol]) -> Kernel:
        name, descriptor_name = str(_fact(entry, ".name", str)), str(_fact(entry, ".symbol", str))
        for wanted in (name, descriptor_name):
            if wanted not in symbols:
                raise ObjectError(f"the metadata names {wanted}, but the code object has no such symbol")
        raw = self._at_symbol(symbols[descriptor_name], descriptor_name)
        if len(raw) != _DESCRIPTOR_BYTES:
            raise ObjectError(f"{descriptor_name} has {len(raw)} bytes; a kernel descriptor has {_DESCRIPTOR_BYTES}")
        descriptor = read_descriptor(raw, symbols[descriptor_name].address)
        if descriptor.entry != symbols[name].address:
            raise ObjectError(f"{descriptor_name} starts at 0x{descriptor.entry:x}, {name} is at another address")
        if int(_fact(entry, ".wavefront_size", int)) != 64 or descriptor.properties >> 10 & 1:
            raise ObjectError(f"kernel {name} has waves of 32 lanes; gfx950 has waves of 64")
        stated = int(_fact(entry, ".kernarg_segment_size", int)), int(_fact(entry, ".group_segment_fixed_size", int))
        if stated != (descriptor.kernarg_bytes, descriptor.lds_bytes):
            raise ObjectError(f"kernel {name}: metadata and descriptor differ in argument or local memory bytes")
        block = entry.get(".reqd_workgroup_size")
        return Kernel(
            name,
            symbols[name].address,
            self._at_symbol(symbols[name], name),
            descriptor,
            tuple(
                Argument(
                    int(_fact(item, ".offset", int)),
                    int(_fact(item, ".size", int)),
                    str(_fact(item, ".value_kind", str)),
                )
                for item in _listed(entry, ".args")
            ),
            (int(block[0]), int(block[1]), int(block[2])) if isinstance(block, list) and len(block) == 3 else None,
            int(_fact(entry, ".max_flat_workgroup_size", int)),
            int(_fact(entry, ".sgpr_count", int)),
            int(_fact(entry, ".agpr_count", int)),
        )


def _fact(entry: dict[str, Any], key: str, kind: type) -> Any:
    if not isinstance(entry.get(key), kind):
        raise ObjectError(f"the metadata of a kernel has {key} = {entry.get(key)!r}; accepted: {kind.__name__}")
    return entry[key]


def _listed(entry: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = entry.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ObjectError(f"the metadata's {key} is not a list of maps")
    return found


def read_descriptor(raw: bytes, address: int) -> Descriptor:
    """The kernel descriptor of 64 bytes that lies at `address`."""
    lds, scratch, kernarg = struct.unpack_from("<III", raw, 0)
    (entry,) = struct.unpack_from("<q", raw, 16)
    rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", raw, 44)
    return Descriptor(
        lds_bytes=lds,
        scratch_bytes=scratch,
        kernarg_bytes=kernarg,
        entry=address + entry,
        vgprs=((rsrc1 & 0x3F) + 1) * 8,
        accum_offset=((rsrc3 & 0x3F) + 1) * 4,
        user_sgprs=rsrc2 >> 1 & 0x1F,
        properties=properties,
        group_ids=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        workgroup_info=bool(rsrc2 >> 10 & 1),
        lane_ids=rsrc2 >> 11 & 3,
        float_mode=rsrc1 >> 12 & 0xFF,
        ieee=bool(rsrc1 >> 23 & 1),
        dx10_clamp=bool(rsrc1 >> 21 & 1),
        kernarg_preload=preload & 0x7F,
    )
