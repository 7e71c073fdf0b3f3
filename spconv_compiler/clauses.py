"""Runs of loads that overwrite an address which one of them has read: found in linked code, parted in the IR.

Loads that follow each other are one clause, which is issued again as a whole after a page fault (XNACK). LLVM plans
clauses of up to 15 loads whose results spare their addresses, and parts others where it sees an overlap; but it looks
back over five instructions, and clauses that it planned may come to stand side by side. So the code is looked at again
once it is linked: where a clause overwrites its addresses, the kernel is generated anew with s_nop between its loads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Set

from spconv_compiler.bindings import ir, rocdl
from spconv_compiler.errors import CodegenError
from spconv_compiler.passes.base import walk
from spconv_compiler.sim.encoding import Format, find_formats

_LOAD = "rocdl.raw.ptr.buffer.load"
_PLANNED = 15
# Loads of a block that are left in a row, attempt after attempt.
_PARTS = (_PLANNED, 8, 4, 2, 1)

# Loads of memory by opcode (buffer and flat alike), with the registers that they write.
_DWORDS = {**dict.fromkeys((*range(16, 20), *range(32, 38)), 1), 20: 1, 21: 2, 22: 3, 23: 4}
_LITERAL, _SDWA, _DPP = 255, 249, 250
_SOURCES = {"SOP1": ("ssrc0",), "SOP2": ("ssrc0", "ssrc1"), "SOPC": ("ssrc0", "ssrc1")}
_WITH_LITERAL = {("SOPK", 20), ("VOP2", 23), ("VOP2", 24)}


def part_clauses(module: ir.Module, code: bytes, generate: Callable[[ir.Module], bytes]) -> tuple[bytes, str]:
    """A code object whose clauses spare their addresses, and the text of the module that it is made of.

    Args:
        module: at level rocdl; it is left as it is. code: what generate makes of it.
        generate: makes a code object of a module.

    Returns:
        `code` and "" where nothing is to be parted.

    Raises:
        CodegenError: a clause stays that overwrites its addresses.
    """
    long = {name for name, block in _blocks(module) if len(_loads(block)) > _PLANNED}
    wrong = _overwriting(code, long) if long else set[str]()
    if not wrong:
        return code, ""
    parted, text = set[str](), module.operation.get_asm()
    for most in _PARTS:
        parted |= wrong
        copy = ir.Module.parse(text, context=module.context)
        for name, block in _blocks(copy):
            if name in parted:
                _part(block, most)
        code = generate(copy)
        wrong = _overwriting(code, parted)
        if not wrong:
            return code, copy.operation.get_asm()
    raise CodegenError(f"kernel {', '.join(sorted(wrong))}: loads in a row overwrite an address of one of them")


def _blocks(module: ir.Module) -> list[tuple[str, ir.Block]]:
    """(name of the kernel, block) of all kernels."""
    found = []
    for op in walk(module.operation):
        if op.operation.name == "llvm.func":
            name = ir.StringAttr(op.operation.attributes["sym_name"]).value
            found += [(name, block) for region in op.operation.regions for block in region]
    return found


def _loads(block: ir.Block) -> list[ir.OpView]:
    return [op for op in block.operations if op.operation.name == _LOAD]


def _part(block: ir.Block, most: int) -> None:
    """Puts an s_nop, which loads do not pass, behind so many loads."""
    for op in _loads(block)[most::most]:
        with ir.InsertionPoint(op), op.operation.location:
            rocdl.s_nop(0)


def _overwriting(code: bytes, names: Set[str]) -> set[str]:
    """Which of the kernels of a code object have a clause that overwrites its addresses."""
    from spconv_compiler.sim.elf import CodeObject

    kernels = CodeObject(code).kernels
    doubtful = {name for name in names if _may_overwrite(kernels[name].code)}
    if not doubtful:
        return set()
    # Its tables take a tenth of a second to import, and most code needs no closer look.
    from spconv_compiler.sim.decode import decode
    from spconv_compiler.sim.static_checks import check_clauses

    return {name for name in doubtful if check_clauses(decode(kernels[name].code, kernels[name].address))}


def _may_overwrite(code: bytes) -> bool:
    """False only where no row of vector memory accesses reads a register that it loads, or stores behind a load."""
    reads, writes = set[int](), set[int]()
    for name, word in _instructions(code):
        if name not in ("MUBUF", "FLAT"):
            reads, writes = set(), set()
            continue
        dwords = _DWORDS.get(word >> 18 & 127)
        if dwords is None:
            # A store or an atomic: fine, unless it follows a load.
            if writes:
                return True
            continue
        address, result = word >> 32 & 255, word >> (40 if name == "MUBUF" else 56) & 255
        reads |= {address, address + 1}
        if not word >> 55 & 1:
            writes |= set(range(result, result + dwords))
        if reads & writes:
            return True
    return False


def _instructions(code: bytes) -> Iterator[tuple[str, int]]:
    """(name of the format, first one or two dwords) of every instruction."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = 0
    while at < len(words):
        form = find_formats(words[at])[0]
        long = form.bits == 64
        yield form.name, words[at] | (words[at + 1] << 32 if long else 0)
        at += 2 if long or _has_extra_dword(form, words[at]) else 1


def _has_extra_dword(form: Format, word: int) -> bool:
    """Whether an instruction of one dword has a literal, or the second half of SDWA or DPP, behind it."""
    if (form.name, form.read(word, "op") if "op" in form.fields else 0) in _WITH_LITERAL:
        return True
    if form.name in _SOURCES:
        return any(form.read(word, field) == _LITERAL for field in _SOURCES[form.name])
    return form.name in ("VOP1", "VOP2", "VOPC") and form.read(word, "src0") in (_LITERAL, _SDWA, _DPP)
