"""Builds the handlers of all opcodes with MLIR, keeps them on disk, and loads them.

The handlers are dealt into parts, which two child processes compile: compilation holds Python's lock, and what makes
LLVM abort ends a child, not the program. The objects are linked into one shared library, whose functions
`handlers_<part>` write the addresses of the part's functions into a table.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spconv_compiler import env, linker, toolchain
from spconv_compiler.cache import KernelCache, open_disk_cache
from spconv_compiler.cache_key import cache_key
from spconv_compiler.errors import CodegenError, ToolchainError
from spconv_compiler.runtime.cpu import CpuModule
from spconv_compiler.sim import isa_memory, isa_scalar, isa_vector
from spconv_compiler.sim.errors import UnsupportedError
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.modifiers import Modifiers, derive
from spconv_compiler.sim.native import scheduler
from spconv_compiler.sim.native.emit import POINTER, Build, Module, emit_common
from spconv_compiler.sim.native.family import Family, handler_name
from spconv_compiler.sim.rows import Row

# Modules that hold families.
MODULES = (
    "scalar",
    "vector",
    "cross",
    "hardware",
    "matrix",
    "accessors",
    "scalar_memory",
    "local",
    "local_lanes",
    "private",
)
NEEDED_FEATURES = frozenset({"avx2", "fma", "f16c", "popcnt"})
_CORE = (isa_scalar, isa_vector, isa_memory)
_FENCES = ("buffer_wbl2", "buffer_inv")
# Handlers of these modules that no kernel of this project has, and few others: built when one has them.
_RARE = re.compile(
    r"v_(med3|alignbit|subbrev|ffbh|ashrrev_i64|mul_hi_i32|cvt_f16_f32|cvt_f32_f16)_"
    r"|v_cmp_(?!ngt)\w+_f32_|v_cmp_(?!gt)\w+_i64_|v_mfma_f32_32x32|v_(?!add_lshl)\w+__SVS$"
    r"|s_cmpk_(eq|ge|le|lg)|s_(bitset0|brev|nand|xnor|orn2|lshl[123]_add|pack|sext|flbit)"
    r"|(buffer|global)_atomic_(and|or|xor|sub|smin|smax|umax)_"
)
# Those of other modules, and other shapes, that its kernels have.
_ALSO = {
    "ds_add_u32": ("D",), "global_atomic_add": ("Pr", "Sr"), "global_load_dword": ("Pd", "Sd"),
    "global_store_dword": ("Pd", "Sd"), "v_cndmask_b32": ("SSM",), "v_cvt_f32_u32": ("S", "V"), "v_cvt_u32_f32": ("V",),
    "v_mbcnt_lo_u32_b32": ("SS",), "v_min3_u32": ("VVS",), "v_mul_f32": ("SV", "VV"), "v_rcp_f32": ("V",),
    "v_sub_co_u32": ("SS",),
}  # fmt: skip
_SLICES, _WORKERS = 4, 2
_MOST_IN_PART = 100
_OBJECT, _INDEX = "handlers.so", "index.json"

Progress = Callable[[str], None]
Shapes = Mapping[str, tuple[Row, str]]


@functools.cache
def families() -> dict[str, Family]:
    """The family of each kind of row."""
    found: dict[str, Family] = {}
    for module in MODULES:
        for family in importlib.import_module(f"spconv_compiler.sim.native.{module}").FAMILIES:
            found.update(dict.fromkeys(family.kinds, family))
    return found


def family_of(row: Row) -> Family:
    """The family that makes handlers of a row.

    Raises:
        UnsupportedError: the native engine has none.
    """
    found = families().get(row.kind)
    if found is None:
        raise UnsupportedError(f"{row.name}: the native engine has no handlers for opcodes of kind {row.kind!r}")
    return found


def all_shapes() -> Shapes:
    """What is built in advance, by the handler's name: the opcodes of compiled kernels in each of their shapes.

    Rarer opcodes and forms with modifiers are built when a kernel has them.
    """
    rows = [derive(row, Modifiers()) for part in _CORE for row in part.ROWS if row.kind in families()]
    rows += [*_to_local(), *(ROWS[name] for name in _FENCES)]
    listed = [(row, shape) for row in rows for shape in family_of(row).shapes(row)]
    named = {handler_name(*each): each for each in listed}
    also = [(derive(ROWS[name], Modifiers()), shape) for name, shapes in _ALSO.items() for shape in shapes]
    common = {name: each for name, each in named.items() if not _is_rare(name, *each)}
    return {**common, **{handler_name(*each): each for each in also}}


def _is_rare(name: str, row: Row, shape: str) -> bool:
    """Also with a second source that is scalar, where the short form has none: compilers turn the sources round."""
    return _RARE.match(name) is not None or "VOP2" in row.formats and shape == "VS"


def _to_local() -> list[Row]:
    """Loads of words straight to LDS, as decode_memory.py makes them, or as they stand in the table."""
    sizes = ("dword", "dwordx3", "dwordx4")
    plain = [ROWS[f"buffer_load_{size}"] for size in sizes]
    made = [
        dataclasses.replace(row, access=dataclasses.replace(row.access, lds=True), variant="lds")
        for row in plain
        if row.access is not None
    ]
    return [*made, *(ROWS[f"global_load_lds_{size}"] for size in sizes)]


def build_of(checks: bool, traced: bool = False) -> Build:
    """What to build for this host.

    Raises:
        ToolchainError: the CPU lacks something that the handlers need.
    """
    features = toolchain.host_cpu_features()
    if not NEEDED_FEATURES <= features:
        missing = ", ".join(sorted(NEEDED_FEATURES - features))
        raise ToolchainError(f"the native engine needs an x86 CPU with {missing}; the numpy engine runs anywhere")
    return Build(checks, traced, features)


class Library:
    """Handlers and scheduler of one build, loaded."""

    def __init__(self, code: bytes, names: Sequence[Sequence[str]]) -> None:
        self._module = CpuModule(code)
        self.addresses: dict[str, int] = {}
        for part, listed in enumerate(names):
            table = (ctypes.c_uint64 * max(1, len(listed)))()
            self._module.function(f"handlers_{part}", ["buffer"], result=False)(ctypes.addressof(table))
            self.addresses.update(zip(listed, table, strict=False))

    def run(self, launch: int) -> None:
        """Runs workgroups with the launch block at an address; other Python threads go on meanwhile."""
        self._module.function("run", ["buffer"], result=False)(launch)


def load(build: Build, begin: Callable[[int], Progress] | None = None) -> Library:
    """The library of all shapes of the table, with the scheduler.

    Args:
        begin: called with the number of steps when something must be compiled; gives what to call before each.

    Raises:
        CodegenError, ToolchainError: the handlers cannot be built.
    """
    parts = _key(build, "all")
    return _cache().get_or_build(cache_key(parts), parts, lambda: _build_table(build, begin))


def load_more(build: Build, shapes: Shapes) -> Library:
    """A library of some more handlers; raises as `load`."""
    listed = list(shapes.items())
    count = -(-len(listed) // _MOST_IN_PART)
    modules = [emit_part(build, dict(listed[part::count]), part, common=False) for part in range(count)]
    digest = hashlib.sha256("\n".join(text for module in modules for text in module.functions).encode())
    parts = _key(build, digest.hexdigest())
    return _cache().get_or_build(cache_key(parts), parts, lambda: _build_more(modules))


def _key(build: Build, content: str) -> dict[str, object]:
    return {
        "simulator": _sources(),
        "flydsl": ":".join(toolchain.flydsl_identity()),
        "linker": linker.linker_identity(),
        "checks": build.checks,
        "traced": build.traced,
        "features": " ".join(sorted(build.features)),
        "content": content,
    }


@functools.cache
def _cache() -> KernelCache[Library]:
    return KernelCache(_load, disk=open_disk_cache())


def _load(key: str, files: Mapping[str, bytes]) -> Library:
    return Library(files[_OBJECT], json.loads(files[_INDEX]))


@functools.cache
def _sources() -> str:
    folder = pathlib.Path(__file__).parents[1]
    return toolchain.digest_of([("spconv_compiler.sim", folder)])


def _build_table(build: Build, begin: Callable[[int], Progress] | None) -> dict[str, bytes]:
    count = len(_table_parts())
    progress = begin(count + 1) if begin is not None else lambda step: None
    with tempfile.TemporaryDirectory(prefix="spconv-") as name:
        order = {"folder": name, "checks": build.checks, "traced": build.traced, "features": sorted(build.features)}
        _run_children("compile_parts", order, min(_WORKERS, env.NUM_THREADS.get()), progress)
        progress("linking")
        return _link(pathlib.Path(name), count)


def _table_parts() -> list[Shapes]:
    """The shapes of the table, dealt into parts: those that share functions stay together, long ones come first."""
    parts: dict[str, dict[str, tuple[Row, str]]] = {}
    for number, (name, each) in enumerate(all_shapes().items()):
        row = each[0]
        if row.access is not None:
            where = "local" if row.kind in ("lds", "permute") else "memory"
            part = f"{where} {row.access.kind}"
        else:
            part = "matrix" if row.kind == "mfma" else f"arithmetic {number % _SLICES}"
        parts.setdefault(part, {})[name] = each
    return [parts[part] for part in sorted(parts, reverse=True)]


def _build_more(modules: Sequence[Module]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="spconv-") as name:
        for part, module in enumerate(modules):
            pathlib.Path(name, f"{part}.mlir").write_text("\n".join(module.functions))
            pathlib.Path(name, f"{part}.json").write_text(json.dumps(module.handlers))
        order = {"folder": name, "count": len(modules)}
        workers = min(_WORKERS, len(modules), env.NUM_THREADS.get())
        _run_children("compile_texts", order, workers, lambda step: None)
        return _link(pathlib.Path(name), len(modules))


def _link(folder: pathlib.Path, count: int) -> dict[str, bytes]:
    linker.link_shared([folder / f"{part}.o" for part in range(count)], folder / _OBJECT)
    names = [json.loads((folder / f"{part}.json").read_text()) for part in range(count)]
    return {_OBJECT: (folder / _OBJECT).read_bytes(), _INDEX: json.dumps(names).encode()}


_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from spconv_compiler.sim.native import library; "
    "getattr(library, sys.argv[2])(json.loads(sys.argv[3]))"
)


def _run_children(function: str, order: Mapping[str, object], count: int, progress: Progress) -> None:
    """Runs a function of this module in some processes; each prints a line before each step."""
    command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), function, json.dumps(order)]
    with tempfile.TemporaryFile("w+") as errors:
        reading, writing = os.pipe()
        children = [subprocess.Popen(command, stdout=writing, stderr=errors) for _ in range(count)]
        os.close(writing)
        try:
            with open(reading) as lines:
                for line in lines:
                    progress(line.strip())
            failed = [child.returncode for child in children if child.wait() != 0]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        if failed:
            errors.seek(0)
            last = "; ".join(errors.read().strip().splitlines()[-3:])
            raise CodegenError(f"compiling the handlers failed with exit code {failed[0]}: {last}")


def compile_parts(order: dict[str, Any]) -> None:
    """In a child: compiles parts of the table that no other child has, into <part>.o and <part>.json.

    The second file has the names of the handlers in the order of the part's list.
    """
    build = Build(order["checks"], order["traced"], frozenset(order["features"]))
    folder = pathlib.Path(order["folder"])
    parts = _table_parts()
    for part in _claimed(folder, len(parts)):
        print(f"handlers, part {part + 1} of {len(parts)}", flush=True)
        module = emit_part(build, parts[part], part, common=part == 0)
        exported = [f"handlers_{part}"] + ["run"] * (part == 0)
        compile_object("\n".join(module.functions), exported, folder / f"{part}.o")
        (folder / f"{part}.json").write_text(json.dumps(module.handlers))


def compile_texts(order: dict[str, Any]) -> None:
    """In a child: compiles files <part>.mlir that no other child has into <part>.o."""
    folder = pathlib.Path(order["folder"])
    for part in _claimed(folder, order["count"]):
        compile_object((folder / f"{part}.mlir").read_text(), [f"handlers_{part}"], folder / f"{part}.o")


def _claimed(folder: pathlib.Path, count: int) -> Iterator[int]:
    """Numbers below `count` that no other child has taken, taken one by one."""
    for part in range(count):
        try:
            (folder / f"{part}.taken").touch(exist_ok=False)
        except FileExistsError:
            continue
        yield part


def emit_part(build: Build, wanted: Shapes, part: int, *, common: bool) -> Module:
    """A module with handlers, and the function that lists them.

    common: with the scheduler and the functions that all handlers use.
    """
    module = Module(build)
    if common:
        emit_common(module)
        scheduler.emit(module)
    for name, (row, shape) in wanted.items():
        family_of(row).emit(module, row, shape, name)
    lines = [f"llvm.func @handlers_{part}(%out: {POINTER}) attributes {{{module.attributes()}}} {{"]
    for index, name in enumerate(module.handlers):
        lines += [
            f"  %f{index} = llvm.mlir.addressof @{name} : {POINTER}",
            f"  %p{index} = llvm.getelementptr %out[{8 * index}] : ({POINTER}) -> {POINTER}, i8",
            f"  llvm.store %f{index}, %p{index} : {POINTER}, {POINTER}",
        ]
    module.functions.append("\n".join([*lines, "  llvm.return", "}"]))
    return module


def compile_object(text: str, exported: Sequence[str], path: pathlib.Path) -> None:
    """Compiles LLVM-dialect text to an object file.

    Raises:
        CodegenError: MLIR or LLVM refuses it.
    """
    from spconv_compiler.bindings import ExecutionEngine, ir

    with ir.Context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
            engine = ExecutionEngine(module, opt_level=2, enable_object_dump=True, enable_pic=True)
        except (RuntimeError, ir.MLIRError) as error:
            raise CodegenError(f"the handlers do not compile: {error}") from error
        for name in exported:
            if not engine.raw_lookup(name):
                raise CodegenError(f"LLVM generated no code for {name}")
        engine.dump_to_object_file(str(path))
