"""Launches of a plan in a fixed order, put together as one Python function: for calls that are short.

After a pause a processor's caches hold neither this interpreter's code nor its objects, and a small map took longer to
ask for than to build. So what CpuPlan.run finds out at every call, which buffers there are and where they lie, is
written down once as text and compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from spconv_compiler.arrays import ITEM_BYTES
from spconv_compiler.errors import LaunchError
from spconv_compiler.plan import Buffer, Expr, Launch, Plan
from spconv_compiler.runtime.cpu import ALIGNMENT, Block, CpuBuffer, CpuModule
from spconv_compiler.runtime.plan import CAPACITY, STATUS

Program: TypeAlias = "Callable[[Mapping[str, int]], dict[str, CpuBuffer]]"

_INDENT = "    "
_KEPT, _PASSED, _SCRATCH = "_kept", "_passed", "_scratch"


def make_program(
    plan: Plan, module: CpuModule, groups: Sequence[str], also: Sequence[str] = (), passed: Sequence[str] = ()
) -> Program:
    """A function that runs all launches of `groups`, in order; it may be called from several threads.

    It takes all symbols and the addresses of all buffers that it does not make: inputs of the plan, and what other
    groups make. It gives the buffers that other groups read, those called "…status" and those in `also`, and raises
    LaunchError as CpuPlan.run. Memory of those in `passed` is apart from that of the others, and goes when they do.

    Raises:
        LaunchError: the code object lacks a function.
    """
    launches = [launch for group in groups for launch in plan.launches if launch.group == group]
    writer = _Writer(plan, groups, launches, also, passed)
    names: dict[str, Any] = {"_Block": Block, "_CpuBuffer": CpuBuffer, "_failed": _failed}
    for number, launch in enumerate(launches):
        names[f"_kernel_{number}"] = module.function(launch.kernel, [argument.kind for argument in launch.arguments])
    exec(writer.text(), names)
    made: Program = names["run"]
    return made


class _Writer:
    """Writes the function. Buffers and symbols keep their names, which differ (plan.py); others begin with _."""

    def __init__(
        self, plan: Plan, groups: Sequence[str], launches: Sequence[Launch], also: Sequence[str], passed: Sequence[str]
    ) -> None:
        self._launches = launches
        used = dict.fromkeys(argument.name for launch in launches for argument in launch.arguments)
        first = {name: launch.group for launch in reversed(plan.launches) for name in _buffers_of(launch)}
        self._made = {item.name: item for item in plan.buffers if item.name in used and first[item.name] in groups}
        self._given = [name for name in used if name not in self._made]
        read = {name for launch in plan.launches if launch.group not in groups for name in _buffers_of(launch)}
        last = [name for name in self._made if name in read or name in also or name.endswith(STATUS)]
        self._block = {name: _PASSED if name in passed else _KEPT for name in last}

    def text(self) -> str:
        lines = [*self._read(), *self._allocate()]
        for number, launch in enumerate(self._launches):
            lines += self._launch(number, launch)
        found = ", ".join(f"{name!r}: {self._buffer(self._made[name])}" for name in self._block)
        lines.append(f"return {{{found}}}")
        return "\n".join(["def run(_values):", *(_INDENT + line for line in lines)])

    def _read(self) -> list[str]:
        """Every symbol and address that is given, as a local variable."""
        sizes = {name for item in self._made.values() for name in _symbols_of(item.size)}
        wanted = dict.fromkeys([*self._given, *sorted(sizes)])
        return [f"{name} = _values[{name!r}]" for name in wanted if name != CAPACITY]

    def _allocate(self) -> list[str]:
        """One block for each kind of what is returned, one for the rest; what may turn out too small has its own."""
        lines = [f"_{name}_count = {_source(item.size)}" for name, item in self._made.items()]
        for block in dict.fromkeys([*self._block.values(), _SCRATCH]):
            items = [item for item in self._made.values() if not item.grows and self._block_of(item) == block]
            lines.append("_end = 0")
            for item in items:
                lines.append(f"_{item.name}_place = _end")
                nbytes = f"_{item.name}_count * {ITEM_BYTES[item.dtype]}"
                lines.append(f"_end += {nbytes} + {ALIGNMENT - 1} & -{ALIGNMENT}")
            lines += [f"{block} = _Block(_end)", f"_base = {block}.pointer"] if items else []
            lines += [f"{item.name} = _base + _{item.name}_place" for item in items]
        for name, item in self._made.items():
            if item.grows:
                lines += self._grown(item, f"_{name}_count")
        return lines

    def _launch(self, number: int, launch: Launch) -> list[str]:
        growing = [self._made[name] for name in _buffers_of(launch) if name in self._made and self._made[name].grows]
        capacity = f"_{growing[0].name}_count" if growing else "0"
        arguments = [capacity if argument.name == CAPACITY else argument.name for argument in launch.arguments]
        call = f"_needed = _kernel_{number}({', '.join(arguments)})"
        if not growing:
            return [call, "if _needed:", f"{_INDENT}raise _failed({launch.kernel!r}, _needed)"]
        # The old buffer goes before the new one comes: its contents are not needed.
        (item,) = growing
        again = [f"if _needed <= {capacity}:", f"{_INDENT}raise _failed({launch.kernel!r}, _needed)"]
        again += [f"del _{item.name}_buffer", *self._grown(item, "_needed"), f"{capacity} = _needed", call]
        return [call, "while _needed:", *(_INDENT + line for line in again)]

    @staticmethod
    def _grown(item: Buffer, count: str) -> list[str]:
        name = f"_{item.name}_buffer"
        return [f"{name} = _CpuBuffer({item.dtype!r}, {count})", f"{item.name} = {name}.pointer"]

    def _block_of(self, item: Buffer) -> str:
        return self._block.get(item.name, _SCRATCH)

    def _buffer(self, item: Buffer) -> str:
        if item.grows:
            return f"_{item.name}_buffer"
        return f"{self._block_of(item)}.buffer({item.dtype!r}, _{item.name}_count, _{item.name}_place)"


def _buffers_of(launch: Launch) -> list[str]:
    return [argument.name for argument in launch.arguments if argument.kind == "buffer"]


def _symbols_of(expr: Expr) -> set[str]:
    if isinstance(expr, (int, str)):
        return {expr} if isinstance(expr, str) else set()
    return _symbols_of(expr[1]) | _symbols_of(expr[2])


def _source(expr: Expr) -> str:
    """The Python text of an expression over local variables."""
    if isinstance(expr, (int, str)):
        return str(expr)
    operator, left, right = expr[0], _source(expr[1]), _source(expr[2])
    if operator == "min":
        return f"min({left}, {right})"
    if operator == "ceildiv":
        return f"-(-({left}) // ({right}))"
    return f"({left}) {({'add': '+', 'mul': '*', 'mod': '%', 'floordiv': '//'})[operator]} ({right})"


def _failed(kernel: str, result: int) -> LaunchError:
    if result < 0:
        return LaunchError(f"kernel {kernel} ran out of memory or threads (code {result})")
    return LaunchError(f"kernel {kernel} asks for {result} elements of a buffer that cannot grow")
