"""The coordinates that a convolution makes, as packed keys, each once.

A fine voxel f meets the coarse voxels c with c·stride = f + padding − i·dilation for some tap i, a coarse voxel c the
fine voxels c·stride − padding + i·dilation. Axes do not depend on each other, so the candidates of a voxel are the
product of three short lists (candidates.py). Those outside of the box of outputs are left out.

The box of outputs is cut into slabs: neighbouring lines of one plane, no more cells than fit the second-level cache as
bits. The inputs are sorted, so those that reach a slab stand in one range for every tap along z. Their outputs are
marked in the slab's bits (marks.py), and the bits are read off in order: no output is sorted, and slabs do not depend
on each other. Where the box has more than one slab for a few inputs, or a line does not fit, candidates are listed,
sorted and kept once each. Either way the result depends neither on the order of the inputs nor on a hash or on threads.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.candidates import Candidates, quotient_by
from spconv_compiler.passes.cpu.chunk_pairs import PERMUTATIONS, compaction_permutations
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.half_table import lower_bound
from spconv_compiler.passes.cpu.lane_marks import LaneMarks
from spconv_compiler.passes.cpu.marks import MOST_CELLS, Marks
from spconv_compiler.passes.cpu.memory import atomic_add
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.radix_sort import RadixSort
from spconv_compiler.passes.cpu.sorted_keys import key_type
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i1, i64, if_, if_else, load, store
from spconv_compiler.passes.reach import Reach

# What the kernel leaves in its status buffer: how many outputs there are, and entries of the table of slabs.
OUTPUTS, SLABS = 0, 1
# Cells of a slab at least, and how many inputs it should have where it may be larger.
_LEAST_SLAB, _INPUTS = 1 << 17, 1 << 10
# Candidates that a slab, which takes half a microsecond even where it is empty, has to save the sort of.
_PER_SLAB, _SPARE_SLABS = 64, 64
# Outputs of an entry of the table where they were sorted.
_BLOCK = 1 << 13
# Planes of fewer cells than 2^50 let a voxel's line be found in floating point.
_LONGEST = 1 << 25
# Candidates that a worker is worth.
_GRAIN = 1 << 15


@dataclasses.dataclass(frozen=True)
class OutputKeys:
    """Body of the kernel that makes the keys of all outputs.

    Arguments: keys of the inputs as SortedKeys left them: of fine voxels, or of coarse ones where the op is transposed;
    out keys [inputs · reach.most]; spare, as many; slabs i64 [slab_words(inputs)]: entries (place of the first key,
    number of the first output), and one more behind the last; scratch i64 [threads, MARKS_WORDS]; status i64; inputs;
    min_z, min_y, min_x, extent_z, …: the box of the inputs' keys; out_min_z, …, out_extent_z, …; batches; threads.
    Keys of an entry ascend, and entries do.
    """

    functions: Functions
    name: str
    reach: Reach
    key_width: int

    @property
    def key(self) -> ir.Type:
        return key_type(self.key_width)

    def slab_words(self, inputs: str) -> str:
        """The size of the table of slabs."""
        return f"({inputs} * {self.reach.most} floordiv {_PER_SLAB} + {_SPARE_SLABS + 1}) * 2"

    def __call__(
        self, keys: V, out_keys: V, spare: V, slabs: V, scratch: V, status: V, inputs: V, *numbers: V
    ) -> None:
        *box, threads = numbers
        self.functions.constant(PERMUTATIONS, compaction_permutations())
        sort = RadixSort.make(self.key, (out_keys,), (spare,))
        out_extents, batches = box[9:12], box[12]
        planes, (out_y, out_x) = batches * out_extents[0], out_extents[1:]
        wanted = planes * out_y * out_x // (inputs // _INPUTS + 1)
        lines = (wanted.max(_LEAST_SLAB).min(MOST_CELLS) // out_x.max(1)).min(out_y)
        parts = (out_y + (lines.max(1) - 1)) // lines.max(1)
        count = planes * parts
        candidates = inputs * self.reach.most
        marked = (lines > 0) & (count <= candidates // _PER_SLAB + _SPARE_SLABS)
        marked = marked & (box[4].max(box[5]) < _LONGEST)
        store(const(0, i64()), status, OUTPUTS)
        workers = worth_workers(threads, candidates, _GRAIN)
        with for_(0, workers, 1, unroll=False) as worker:
            Marks.of(scratch, worker.iv).need_clearing()
        shared = [keys, out_keys, slabs, scratch, status, inputs, lines, parts, *box]
        taken = marked.select(count, const(0, i64()))
        parallel_for(self.functions, self.name, taken, workers, shared, self._slab)
        with if_(marked):
            self._close(slabs, status, count)
        with if_(marked.eq(0)):
            found = self._list(keys, out_keys, status, inputs, box)
            sort(found, planes * out_y * out_x)
            self._blocks(slabs, status, self._unique(out_keys, found))

    def _slab(
        self,
        slab: V,
        worker: V,
        keys: V,
        out_keys: V,
        slabs: V,
        scratch: V,
        status: V,
        inputs: V,
        lines: V,
        parts: V,
        *box: V,
    ) -> None:
        """Marks and writes the outputs of one slab."""
        low, extents, out_low, out_extents = box[:3], box[3:6], box[6:9], box[9:12]
        marks = Marks.of(scratch, worker)
        marks.clear_once(lines * out_extents[2])
        plane, first_line = slab // parts, slab % parts * lines
        batch, out_z = plane // out_extents[0], plane % out_extents[0]
        size = lines.min(out_extents[1] - first_line)
        reach = Candidates(self.reach, low, out_low)
        begin_y, end_y = reach.sources(1, first_line, size, extents[1])
        with for_(0, const(self.reach.kernel_size[0], i64()), 1, unroll=False) as tap:
            z = reach.source(0, out_z, tap.iv)
            plane_key = (batch * extents[0] + z) * extents[1]
            ends = [(plane_key + y) * extents[2] for y in (begin_y, end_y)]
            inside = z.ult(extents[0]) & (begin_y < end_y)

            def search(ends: list[V] = ends) -> list[V]:
                return [lower_bound(keys, self.key, inputs, end.to(self.key)) for end in ends]

            nothing = const(0, i64())
            begin, end = if_else(inside, search, lambda: [nothing, nothing])
            span, lines_of = (begin, end), (plane_key * extents[2], extents[2])
            self._mark_range(reach, keys, marks, span, lines_of, (first_line, size, out_extents[2]))
        words, count = marks.find(size * out_extents[2])
        first = atomic_add(gep(status, OUTPUTS, i64()), count)
        key = ((batch * out_extents[0] + out_z) * out_extents[1] + first_line) * out_extents[2]
        marks.take(words, key, gep(out_keys, first, self.key), self.key)
        store(first, slabs, slab * 2)
        store(count, slabs, slab * 2 + 1)

    def _mark_range(
        self, reach: Candidates, keys: V, marks: Marks, span: tuple[V, V], plane: tuple[V, V], slab: tuple[V, V, V]
    ) -> None:
        """Marks what the inputs at places [begin, end), which lie in one plane, reach in a slab.

        plane: the key of its first cell, and cells of a line. slab: its first line, lines, and cells of a line.
        """
        (plane_key, extent_x), (first_line, size, out_x) = plane, slab
        if self._keeps_lines:
            line, x = (reach.prepare(axis, const(0, i64()))[0] for axis in (1, 2))
            alike, (begin, end) = extent_x.eq(out_x) & x.eq(0), span
            with if_(alike):
                self._move_range(keys, marks, span, (line - first_line) * out_x - plane_key)
            span = alike.select(end, begin), end
        if LaneMarks.serves(self.reach, self.key_width):
            LaneMarks(self.reach, reach.low, reach.out_low).mark(keys, marks, span, plane, slab)
            return
        line_of = quotient_by(extent_x)
        with for_(*span, 1, unroll=False) as loop:
            place = load(keys, self.key, loop.iv).to(i64()) - plane_key
            line = line_of(place)
            of_line, of_x = reach.prepare(1, line), reach.prepare(2, place - line * extent_x)

            run, most = reach.run(2, of_x, out_x), reach.most_in_run(2)

            def take_line(y: V, reached: V, of_x: tuple[V, V] = of_x, run: tuple[V, V] | None = run) -> None:
                line = y - first_line
                start, on_line = line * out_x, reached & line.ult(size)

                def take(x: V, reached: V) -> None:
                    marks.mark(start + x, reached.to(i64()), on_line & reached & x.ult(out_x))

                if run is None:
                    reach.each(2, of_x, take)
                else:
                    # Without a bit the place may be anywhere.
                    marks.mark(start + run[0], run[1], on_line & run[1].ne(0), most)

            reach.each(1, of_line, take_line)

    @property
    def _keeps_lines(self) -> bool:
        """Whether a line of inputs is a line of outputs in its plane, as for kernel (3, 1, 1) and stride (2, 1, 1)."""
        return all(self.reach.on(axis)[:2] == (1, 1) and self.reach.on(axis)[3] == 1 for axis in (1, 2))

    def _move_range(self, keys: V, marks: Marks, span: tuple[V, V], distance: V) -> None:
        """Marks the places that lie `distance` behind the keys at places [begin, end); all are in the slab.

        So they do where lines of inputs and of outputs begin alike and are as long.
        """
        with for_(*span, 1, unroll=False) as loop:
            marks.add(load(keys, self.key, loop.iv).to(i64()) + distance)

    def _close(self, slabs: V, status: V, count: V) -> None:
        """Leaves out empty slabs, and puts the number of the first output where the count was."""
        with for_(0, count, 1, [const(0, i64())] * 2, unroll=False) as loop:
            kept, before = loop.args
            first, size = (load(slabs, i64(), loop.iv * 2 + word) for word in range(2))
            store(first, slabs, kept * 2)
            store(before, slabs, kept * 2 + 1)
            loop.yields(kept + size.ne(0).to(i64()), before + size)
        kept, outputs = loop.results
        store(outputs, slabs, kept * 2 + 1)
        store(kept, status, SLABS)

    def _blocks(self, slabs: V, status: V, outputs: V) -> None:
        """The table of slabs for outputs that stand in order."""
        blocks = (outputs + (_BLOCK - 1)) // _BLOCK
        with for_(0, blocks + 1, 1, unroll=False) as loop:
            for word in range(2):
                store((loop.iv * _BLOCK).min(outputs), slabs, loop.iv * 2 + word)
        store(outputs, status, OUTPUTS)
        store(blocks, status, SLABS)

    def _list(self, keys: V, out_keys: V, status: V, inputs: V, box: list[V]) -> V:
        """Writes the keys of all candidates; gives how many there are."""
        low, extents, out_low, out_extents = box[:3], box[3:6], box[6:9], box[9:12]
        reach = Candidates(self.reach, low, out_low)

        def append(line: V, places: list[V], reached: V) -> None:
            axis = 3 - len(places)
            if not places:
                # Always written, and kept by counting it.
                count = load(status, i64(), OUTPUTS)
                store(line.to(self.key), out_keys, count)
                store(count + reached.to(i64()), status, OUTPUTS)
                return

            def take(place: V, here: V) -> None:
                inside = reached & here & place.ult(out_extents[axis])
                append(line * out_extents[axis] + place, places[1:], inside)

            reach.each(axis, reach.prepare(axis, places[0]), take)

        with for_(0, inputs, 1, unroll=False) as loop:
            key = load(keys, self.key, loop.iv).to(i64())
            line, x = key // extents[2], key % extents[2]
            plane, y = line // extents[1], line % extents[1]
            append(plane // extents[0], [plane % extents[0], y, x], const(1, i1()))
        return load(status, i64(), OUTPUTS)

    def _unique(self, keys: V, count: V) -> V:
        """Moves the first of equal keys to the front, in order; gives how many there are."""
        with for_(0, count, 1, [const(0, i64()), const(-1, self.key)], unroll=False) as loop:
            kept, before = loop.args
            key = load(keys, self.key, loop.iv)
            store(key, keys, kept)
            loop.yields(kept + key.ne(before).to(i64()), key)
        return loop.results[0]
