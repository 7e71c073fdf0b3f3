"""What the simulator keeps beside every word of device memory, and the rules of races.

A cell is 32 bits. The low five say what of the word is there: a leading one at place k means that k bytes are
allocated, and below it stands one bit for each byte that was initialised; 31 is a whole, initialised word, 0 no word
at all. Above stand the kind of the accesses in this launch (three bits) and the segment that made them (24 bits).

A segment is one wave of one workgroup between two barriers. The segments of a workgroup between two barriers have
consecutive numbers, and one number more stands for several of its waves; a group of one wave needs one segment in
all, since its accesses are in order. Segments of another workgroup are ordered by a release and an acquire only
(fences.py), and "many" is always another.

No access in order is refused, and without fences no race is missed. Where a fence has ordered workgroups, the cell of
a word that one of them updates stays that of the writer: an access of a third one, which is ordered behind the writer
and not behind the update, passes. Bytes and halves of one word that different segments write count as a race, though
they do not touch each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.fences import Fences

READY = 31
WHOLE_WORD = 16
STATE_BITS, KIND_SHIFT, KIND_MASK, SEGMENT_SHIFT = 31, 5, 7, 8
MANY = 2**24 - 1
# Kinds. The first, with a segment, means that the workgroup changed the word and later read it in that segment; with
# segment 0 it means that nobody touched the word in this launch. The last means that the workgroup touched the word
# plainly before the barrier, and updates it in that segment.
SETTLED, READ, UPDATE, WRITE, MIXED = range(5)
KINDS = ("settled", "read", "update", "write", "mixed")
UNTOUCHED = 5
# Relations of the segment in a cell to the one that comes now; FENCED: of another workgroup, ordered by fences.
SAME, ORDERED, CONCURRENT, FOREIGN, FENCED = range(5)
# What the new segment of a cell is.
KEEP, MINE, SEVERAL, ALL = range(4)
# Bits of a table entry: the new kind, the choice of the segment; or the verb of a race above RACE.
CHOICE_SHIFT, RACE = 3, 32
VERBS = ("reads", "updates", "writes")

# Rows: what the access does, what the cell says; columns: same, ordered, concurrent, foreign, fenced.
# "update" is an atomic, or a load or store of device scope. The cell of an atomic after a plain access of the same
# segment becomes "write", so that atomics of others conflict with it. Who reads what a fence has published leaves the
# cell of the writer alone: it is the one that others must not meet.
_RULES = """
read   untouched  read-mine    -             -               -           -
read   read       read-keep    read-mine     read-several    read-all    read-keep
read   update     write-mine   settled-mine  updates         updates     update-keep
read   settled    settled-keep settled-mine  settled-several writes      settled-keep
read   write      write-keep   settled-mine  writes          writes      write-keep
read   mixed      write-mine   settled-mine  updates         updates     mixed-keep
update untouched  update-mine  -             -               -           -
update read       write-mine   mixed-mine    reads           reads       settled-keep
update update     update-keep  update-mine   update-several  update-all  update-mine
update settled    write-mine   mixed-mine    reads           writes      settled-keep
update write      write-keep   mixed-mine    writes          writes      write-keep
update mixed      mixed-keep   mixed-mine    mixed-several   writes      mixed-keep
write  untouched  write-mine   -             -               -           -
write  read       write-mine   write-mine    reads           reads       write-mine
write  update     write-mine   write-mine    updates         updates     write-mine
write  settled    write-mine   write-mine    reads           writes      write-mine
write  write      write-keep   write-mine    writes          writes      write-mine
write  mixed      write-mine   write-mine    updates         updates     write-mine
"""
_CHOICES = ("keep", "mine", "several", "all")


def _entry(text: str) -> int:
    if text == "-":
        return 0
    if text in VERBS:
        return RACE + VERBS.index(text)
    kind, choice = text.split("-")
    return KINDS.index(kind) | _CHOICES.index(choice) << CHOICE_SHIFT


def _table() -> npt.NDArray[np.uint8]:
    table = np.zeros((4, 6, 5), np.uint8)
    for line in _RULES.strip().splitlines():
        access, state, *entries = line.split()
        row = UNTOUCHED if state == "untouched" else KINDS.index(state)
        table[KINDS.index(access), row] = [_entry(entry) for entry in entries]
    return table


# uint8 [kind of access, state of the cell, relation].
TABLE = _table()


def owner(kind: Any, segment: Any) -> Any:
    """The upper bits of a cell."""
    return segment << SEGMENT_SHIFT | kind << KIND_SHIFT


# The owner of what no kernel may write: reads need no bookkeeping, anything else is an error.
INPUT = owner(SETTLED, MANY)


def entries(
    cells: npt.NDArray[np.uint32],
    access: int,
    segments: npt.NDArray[np.int64],
    groups: npt.NDArray[np.uint32],
    width: int,
    fences: Fences | None = None,
    *,
    fetch: bool = False,
) -> npt.NDArray[np.uint8]:
    """The table's entry for each access; reads of inputs keep their cells.

    Args:
        cells: [n, words]. segments: [n], who accesses. groups: the workgroup of each segment.
        width: segments of a workgroup between two barriers.
        fences: what orders workgroups, where the access respects it. fetch: a load of device scope.
    """
    kind, last = cells >> KIND_SHIFT & KIND_MASK, (cells >> SEGMENT_SHIFT).astype(np.int64)
    state = np.where((kind == SETTLED) & (last == 0), UNTOUCHED, kind)
    mine = segments[:, None]
    known = np.where(last == MANY, 0, last)
    ours = (last != MANY) & (groups[known] == groups[mine])
    concurrent = last >= first_of_block(mine, width)
    relation = np.where(ours, np.where(concurrent, CONCURRENT, ORDERED), FOREIGN)
    relation = np.where((last == mine) | (state == UNTOUCHED), SAME, relation)
    found = TABLE[access, state, relation]
    if fences is not None and (relation == FOREIGN).any():
        settled = (relation == FOREIGN) & fences.known(known, groups[mine])
        found = np.where(settled, TABLE[READ if fetch else access, state, FENCED], found)
    return np.where(cells & ~np.uint32(STATE_BITS) == INPUT, np.uint8(0), found)


def first_of_block(segments: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """The first segment of the workgroup between the same two barriers."""
    return segments - (segments - 1) % width


def apply(
    cells: npt.NDArray[np.uint32], found: npt.NDArray[np.uint8], segments: npt.NDArray[np.int64], width: int
) -> npt.NDArray[np.uint32]:
    """The cells after accesses that are no race, from their entries."""
    mine = np.broadcast_to(segments[:, None], cells.shape)
    choice = found >> CHOICE_SHIFT
    several = first_of_block(mine, width) + width - 1
    last = np.select([choice == MINE, choice == SEVERAL, choice == ALL], [mine, several, MANY], cells >> SEGMENT_SHIFT)
    new = last.astype(np.uint32) << SEGMENT_SHIFT | (found & KIND_MASK).astype(np.uint32) << KIND_SHIFT
    return np.asarray(new | cells & STATE_BITS)
