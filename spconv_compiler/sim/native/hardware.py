"""Handlers of what reads the hardware around a wave: s_getreg, s_setreg, clocks, traps, and cache control."""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.sim.execute_hardware import MODE, is_mode, part
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.native import direct, fences, layout
from spconv_compiler.sim.native.emit import POINTER, Handler, Module
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.rows import Row

_DIES = 8


def _register(instruction: Instruction) -> int:
    """The operand that names hardware register and bits."""
    return instruction.operands[1 if instruction.row.kind == "getreg" else 0].number


def _shapes(row: Row) -> Sequence[str]:
    return ("mode", "other")


def _shape(instruction: Instruction) -> str:
    return "mode" if is_mode(_register(instruction)) else "other"


def _get_fields(instruction: Instruction, places: Places) -> list[int]:
    """Target; lowest bit; mask."""
    _, low, mask = part(_register(instruction))
    return [places.scalar(instruction.operands[0], "u32"), low, places.constant(mask)]


def _emit_get(module: Module, row: Row, shape: str, name: str) -> None:
    """MODE, or the die of the workgroup; workgroups go to the dies in turn."""
    h = Handler(module, name)
    if shape == "mode":
        value = h.constant(MODE, "i32")
    else:
        group = h.convert("trunc", h.state(layout.GROUP, "i64"), "i32")
        value = h.binary("and", group, h.constant(_DIES - 1, "i32"))
    bits = h.binary("and", h.binary("lshr", value, h.field(1, "i32")), h.scalar(h.field(2)))
    h.set_scalar(h.field(0), bits, None)
    h.done()


def _set_fields(instruction: Instruction, places: Places) -> list[int]:
    """Source; mask; what the bits must be."""
    _, low, mask = part(_register(instruction))
    source = places.scalar(instruction.operands[1], "u32")
    return [source, places.constant(mask), places.constant(MODE >> low & mask)]


def _emit_set(module: Module, row: Row, shape: str, name: str) -> None:
    """Accepted as long as it changes nothing."""
    h = Handler(module, name)
    if shape != "mode":
        h.fault(Code.MODE_CHANGES)
        h.close()
        return
    mask, wanted = h.scalar(h.field(1)), h.scalar(h.field(2))
    known = h.binary("and", h.scalar_defined(h.field(0)), mask)
    bits = h.binary("and", h.scalar(h.field(0)), mask)
    h.fault_if(h.binary("or", h.compare("ne", known, mask), h.compare("ne", bits, wanted)), Code.MODE_CHANGES)
    h.done()


def _one_shape(row: Row) -> Sequence[str]:
    return ("",)


def _no_shape(instruction: Instruction) -> str:
    return ""


def _clock_fields(instruction: Instruction, places: Places) -> list[int]:
    return [places.scalar(instruction.operands[0], "u64")]


def _emit_clock(module: Module, row: Row, shape: str, name: str) -> None:
    """Numbers that rise, and say nothing of the time on hardware."""
    h = Handler(module, name)
    place = h.address(h.state(layout.LAUNCH, POINTER), layout.CLOCK)
    ticks = h.binary("add", h.load(place, "i64"), h.constant(1, "i64"))
    h.store(ticks, place)
    h.set_scalar(h.field(0), ticks, None)
    h.done()


def _emit_trap(module: Module, row: Row, shape: str, name: str) -> None:
    h = Handler(module, name)
    h.fault(Code.TRAP)
    h.close()


def _cache_shapes(row: Row) -> Sequence[str]:
    return {"buffer_wbl2": ("", "release"), "buffer_inv": ("", "acquire")}.get(row.name, ("",))


def _cache_shape(instruction: Instruction) -> str:
    """Of device scope they order workgroups."""
    return _cache_shapes(instruction.row)[-1 if instruction.modifiers.get("sc1") else 0]


def _emit_cache(module: Module, row: Row, shape: str, name: str) -> None:
    """Memory is one for all, and caches have nothing to do; what fences order is checked."""
    h = Handler(module, name)
    if row.formats == ("MUBUF",):
        direct.count_issue(h)
    if shape:
        (fences.release if shape == "release" else fences.acquire)(h)
    h.done()


FAMILIES = (
    Family(("getreg",), _shapes, _shape, _get_fields, _emit_get),
    Family(("setreg",), _shapes, _shape, _set_fields, _emit_set),
    Family(("clock",), _one_shape, _no_shape, _clock_fields, _emit_clock),
    Family(("trap",), _one_shape, _no_shape, lambda instruction, places: [], _emit_trap),
    Family(("cache",), _cache_shapes, _cache_shape, lambda instruction, places: [], _emit_cache),
)
