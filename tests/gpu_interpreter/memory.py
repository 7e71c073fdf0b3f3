"""Memory of the level-gpu interpreter: device buffers and workgroup memory that notice every wrong access."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_STORAGE = {"i1": np.bool_, "i32": np.int32, "i64": np.int64, "index": np.int64}
_SIZES = {"i32": 4, "i64": 8, "f32": 4, "bf16": 2, "f16": 2}


class Fault(Exception):
    """The program did what no correct kernel does."""


def storage(type_name: str) -> Any:
    return _STORAGE.get(type_name, np.float32)


class Buffer:
    """Device memory of elements of one type; nothing in it may be read before it is written."""

    def __init__(self, name: str, dtype: str, size: int, contents: Array | None = None) -> None:
        self.name, self.dtype = name, dtype
        self.data = np.zeros(size, storage(dtype))
        self.written = np.zeros(size, bool)
        self.new_launch()
        if contents is not None:
            self.data[:] = contents.reshape(-1)
            self.written[:] = True

    def new_launch(self) -> None:
        """Forgets which lane touched what: launches are ordered. 0: none, lane + 1, or −1: several or atomics."""
        self.reader = np.zeros(len(self.data), np.int64)
        self.writer = np.zeros(len(self.data), np.int64)

    def check(self, index: Array, width: int) -> None:
        if index.size and (index.min() < 0 or index.max() + width > len(self.data)):
            raise Fault(f"{self.name}: elements {index.min()}..{index.max() + width - 1} of {len(self.data)}")
        unit = min(width * _SIZES[self.dtype], 16) // _SIZES[self.dtype]
        if (index % unit).any():
            raise Fault(f"{self.name}: a vector of {width} {self.dtype} at element {index[index % unit != 0][0]}")

    def load(self, index: Array, lanes: Array, width: int) -> Array:
        self.check(index, width)
        cells = index[:, None] + np.arange(width)
        if not self.written[cells].all():
            raise Fault(f"{self.name}: reads element {cells[~self.written[cells]][0]}, which was never written")
        owner = lanes[:, None] + 1
        if ((self.writer[cells] != 0) & (self.writer[cells] != owner)).any():
            raise Fault(f"{self.name}: a lane reads what another lane of the launch writes")
        known = self.reader[cells]
        self.reader[cells] = np.where((known == 0) | (known == owner), owner, -1)
        # Of two lanes that read one element in this instruction one is remembered: the other sees it here.
        self.reader[cells[self.reader[cells] != owner]] = -1
        return self.data[cells] if width > 1 else self.data[index]

    def store(self, index: Array, lanes: Array, value: Array, width: int) -> None:
        self.check(index, width)
        cells, owner = index[:, None] + np.arange(width), lanes[:, None] + 1
        for seen in (self.writer[cells], self.reader[cells]):
            if ((seen != 0) & (seen != owner)).any():
                raise Fault(f"{self.name}: a lane writes what another lane of the launch reads or writes")
        self.writer[cells] = owner
        if (self.writer[cells] != owner).any():
            raise Fault(f"{self.name}: two lanes of one instruction write one element")
        self.data[cells] = value.reshape(len(index), width)
        self.written[cells] = True

    def atomic(self, kind: str, index: Array, value: Array) -> None:
        self.check(index, 1)
        if (self.writer[index] > 0).any() or (self.reader[index] != 0).any():
            raise Fault(f"{self.name}: atomic and plain access to one element in one launch")
        if not self.written[index].all():
            raise Fault(f"{self.name}: an atomic on an element that was never written")
        self.writer[index] = -1
        if kind == "umin":
            np.minimum.at(self.data.view(np.uint32), index, value.view(np.uint32))
        else:
            {"fadd": np.add.at, "add": np.add.at}[kind](self.data, index, value)

    def fetch_add(self, index: Array, value: Array) -> Array:
        """Atomic adds in the order of lanes; what each finds."""
        found = np.zeros(len(index), self.data.dtype)
        for number, (place, amount) in enumerate(zip(index, value, strict=True)):
            self.atomic("add", index[number : number + 1], value[number : number + 1])
            found[number] = self.data[place] - amount
        return found

    def device(self, index: Array, value: Array | None = None) -> Array:
        """Accesses of device scope, which do not mix with plain ones in a launch: reads, or with a value writes."""
        self.check(index, 1)
        if (self.writer[index] > 0).any() or (self.reader[index] != 0).any():
            raise Fault(f"{self.name}: access of device scope and plain access to one element in one launch")
        self.writer[index] = -1
        if value is not None:
            self.data[index], self.written[index] = value, True
        elif not self.written[index].all():
            raise Fault(f"{self.name}: reads an element that was never written")
        return self.data[index]


@dataclasses.dataclass
class Bounded:
    """A buffer with a size: reads beyond give zero."""

    buffer: Buffer
    elements: int


class Shared:
    """i32 memory of every workgroup, with the wave and the barrier interval of the last accesses."""

    def __init__(self, elements: int, groups: int) -> None:
        self.elements = elements
        self.data = np.zeros(groups * elements, np.int32)
        self.write_wave, self.read_wave = np.full((2, groups * elements), -1)
        self.write_epoch, self.read_epoch = np.full((2, groups * elements), -1)

    def cells(self, index: Array, group: Array) -> Array:
        if ((index < 0) | (index >= self.elements)).any():
            raise Fault(f"workgroup memory: element {index.min()}..{index.max()} of {self.elements}")
        return group * self.elements + index

    def load(self, cells: Array, wave: Array, epoch: int) -> Array:
        if (self.write_epoch[cells] < 0).any():
            raise Fault("workgroup memory: reads an element that was never written")
        if ((self.write_epoch[cells] == epoch) & (self.write_wave[cells] != wave)).any():
            raise Fault("workgroup memory: a wave reads what another one wrote, without a barrier in between")
        several = (self.read_epoch[cells] == epoch) & (self.read_wave[cells] != wave)
        self.read_wave[cells], self.read_epoch[cells] = np.where(several, -2, wave), epoch
        return self.data[cells]

    def store(self, cells: Array, wave: Array, epoch: int, value: Array) -> None:
        if len(np.unique(cells)) != len(cells):
            raise Fault("workgroup memory: two lanes of one instruction write one element")
        for other_epoch, other_wave in ((self.write_epoch, self.write_wave), (self.read_epoch, self.read_wave)):
            if ((other_epoch[cells] == epoch) & (other_wave[cells] != wave)).any():
                raise Fault("workgroup memory: a wave writes what another one uses, without a barrier in between")
        self.data[cells], self.write_wave[cells], self.write_epoch[cells] = value, wave, epoch
