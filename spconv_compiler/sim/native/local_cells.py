"""Cells of words of local memory in native code: who wrote and read a word in this epoch, by wave.

The layout of cells and the rules of races: sim/local.py. The functions work on one cell or a vector of cells, i32;
`tags` are those of own_tags, and `difference` is the xor of cells and tags.
"""

from __future__ import annotations

from spconv_compiler.sim import local as rules
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import Handler, Value, lanes_of

_WRITER, _READER = rules.TAG << rules.WRITER_SHIFT, rules.TAG << rules.READER_SHIFT
_WAVES = (1 << rules.WAVE_BITS) - 1


def _masked(f: Handler, value: Value, bits: int) -> Value:
    return f.binary("and", value, f.constant(bits, value.type))


def own_tags(f: Handler) -> Value:
    """i32: wave and epoch of this wave, as sim/local.py writes them, at both places of a cell."""
    epoch = f.op(f"llvm.urem {f.state(layout.EPOCH)}, {f.constant(rules.EPOCHS, 'i32')} : i32", "i32")
    number = f.binary("add", epoch, f.constant(1, "i32"))
    tag = f.binary("or", f.binary("shl", number, f.constant(rules.WAVE_BITS, "i32")), f.state(layout.WAVE))
    writer = f.binary("shl", tag, f.constant(rules.WRITER_SHIFT, "i32"))
    return f.binary("or", writer, f.binary("shl", tag, f.constant(rules.READER_SHIFT, "i32")))


def spread(f: Handler, value: Value, cells: Value) -> Value:
    """A scalar in as many lanes as cells has."""
    return f.broadcast(value, lanes_of(cells.type)) if lanes_of(cells.type) else value


def other(f: Handler, difference: Value, shift: int) -> Value:
    """i1s: the tag at a place in a cell, WRITER_SHIFT or READER_SHIFT, is of this epoch, but of another wave."""
    zero = f.constant(0, difference.type)
    both = _masked(f, difference, (rules.TAG & ~rules.ATOMIC) << shift)
    now = f.compare("eq", _masked(f, both, (rules.TAG & ~_WAVES) << shift), zero)
    return f.binary("and", now, f.compare("ne", both, zero))


def after_read(f: Handler, cells: Value, difference: Value, tags: Value) -> Value:
    """The cells with this wave as a reader, or as the last of several."""
    several = f.constant(rules.SEVERAL << rules.READER_SHIFT, cells.type)
    added = f.select(other(f, difference, rules.READER_SHIFT), several, f.constant(0, cells.type))
    kept = f.binary("or", _masked(f, cells, (1 << rules.READER_SHIFT) - 1), _masked(f, tags, _READER))
    return f.binary("or", kept, added)


def after_write(f: Handler, cells: Value, tags: Value, bits: Value) -> Value:
    """The cells with this wave as the writer; bits: that are initialised."""
    kept = _masked(f, cells, ~_WRITER)
    return f.binary("or", f.binary("or", kept, bits), _masked(f, tags, _WRITER))


def clash(f: Handler, difference: Value) -> Value:
    """i1s: another wave wrote or read the word in this epoch."""
    return f.binary("or", other(f, difference, rules.WRITER_SHIFT), other(f, difference, rules.READER_SHIFT))


def ready(f: Handler, cells: Value) -> Value:
    """i1s: all bytes of the words are initialised."""
    bits = f.constant(rules.INITIALISED, cells.type)
    return f.compare("eq", f.binary("and", cells, bits), bits)


def bytes_of(f: Handler, place: Value, size: int) -> Value:
    """i32: the initialised bits of the bytes of a sub-word at an i64 place."""
    shift = f.convert("trunc", f.binary("and", place, f.constant(3, "i64")), "i32")
    return f.binary("shl", f.constant((1 << size) - 1, "i32"), shift)


def after_update(f: Handler, cell: Value, tags: Value) -> tuple[Value, Value]:
    """(the cell after an atomic of this wave, whether another wave read or plainly wrote the word in this epoch)."""
    atomic, several = (f.constant(bit << rules.WRITER_SHIFT, "i32") for bit in (rules.ATOMIC, rules.SEVERAL))
    last, mine, zero = _masked(f, cell, _WRITER), _masked(f, tags, _WRITER), f.constant(0, "i32")
    now = f.compare("eq", _masked(f, f.binary("xor", last, mine), _WRITER & ~(_WAVES << rules.WRITER_SHIFT)), zero)
    marked = f.binary("and", last, f.binary("or", atomic, several))
    plain = f.binary("and", now, f.compare("eq", marked, zero))
    own = f.binary("or", mine, atomic)
    mixed = f.binary("and", now, f.compare("ne", last, own))
    writer = f.select(plain, mine, f.select(mixed, f.binary("or", mine, several), own))
    lost = f.binary("and", plain, f.compare("ne", last, mine))
    read = other(f, f.binary("xor", cell, tags), rules.READER_SHIFT)
    return f.binary("or", _masked(f, cell, ~_WRITER), writer), f.binary("or", lost, read)
