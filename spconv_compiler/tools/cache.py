"""`spconv-cache`: lists, explains and clears the kernels on disk.

Exit codes: 0 done; 1 the request cannot be met (no such key, directory unusable); 2 wrong usage.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from spconv_compiler import cache_key, env
from spconv_compiler.cache import DiskCache, Entry
from spconv_compiler.errors import InputError
from spconv_compiler.tools.console import guarded

_COLUMNS = ("key", "kernel", "channels", "width", "dtype", "target", "schedule", "size", "last use")
_PREFIX = 10
_SHORT = 160


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the program's) and returns the exit code."""
    return guarded("spconv-cache", lambda: _run(_parser().parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    cache = _open(arguments.dir)
    if arguments.command == "list":
        return _list(cache)
    if arguments.command == "explain":
        return _explain(cache, arguments.a, arguments.b, arguments.full)
    return _clear(cache, arguments.older_than)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spconv-cache", description="Care for the kernels on disk.")
    parser.add_argument("--dir", type=Path, help="the cache directory (default: that of SPCONV_CACHE_DIR)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="list|explain|clear")

    commands.add_parser("list", help="print one line per kernel, the most recently used first")

    explain = commands.add_parser("explain", help="print the parts of a key, or those in which two differ")
    explain.add_argument("a", metavar="A", help="key of a kernel; its first characters are enough")
    explain.add_argument("b", metavar="B", nargs="?", help="key of another kernel")
    explain.add_argument("--full", action="store_true", help="do not shorten long values")

    clear = commands.add_parser("clear", help="remove kernels")
    clear.add_argument(
        "--older-than", type=_days, metavar="DAYS", help="only kernels that were last used more than DAYS ago"
    )
    return parser


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted; accepted: a number of days, 0 or more")
    return days


def _open(folder: Path | None) -> DiskCache:
    root = folder if folder is not None else env.CACHE_DIR.get()
    if root is None:
        raise InputError("there is no home directory; name the cache with --dir or SPCONV_CACHE_DIR")
    if os.path.lexists(root) and not os.path.isdir(root):
        raise InputError(f"the cache directory {root} is not a directory")
    return DiskCache(root, env.CACHE_MAX_MB.get() * 2**20)


def _list(cache: DiskCache) -> int:
    entries = cache.entries()
    rows = [_row(entry) for entry in entries]
    if rows and sys.stdout.isatty():
        _print_rich(rows)
    elif rows:
        _print_plain(rows)
    size = sum(entry.size for entry in entries)
    print(f"{_kernels(len(entries))}, {_size(size)} of at most {_size(cache.max_bytes)}, in {cache.root}")
    return 0


def _explain(cache: DiskCache, a: str, b: str | None, full: bool) -> int:
    entries = cache.entries()
    first = _find(entries, a)
    if b is None:
        files = ", ".join(f"{name} ({_size(size)})" for name, size in sorted(first.files.items()))
        print(f"key = {first.key}\ncreated = {_date(first.created)}\nlast use = {_date(first.last_use)}")
        print(f"files = {files}")
        for difference in cache_key.explain({}, first.parts):
            print(f"{difference.part} = {difference.b if full else _shorten(difference.b)}")
        return 0
    second = _find(entries, b)
    differences = cache_key.explain(first.parts, second.parts)
    if not differences:
        print(f"{first.key[:_PREFIX]} and {second.key[:_PREFIX]} do not differ in any part")
    for difference in differences:
        left, right = difference.a, difference.b
        if not full:
            start = _common(left, right)
            left, right = _shorten(left, start), _shorten(right, start)
        print(f"{difference.part}\n  {first.key[:_PREFIX]}: {left}\n  {second.key[:_PREFIX]}: {right}")
    return 0


def _clear(cache: DiskCache, older_than: float | None) -> int:
    if older_than is None:
        count = cache.clear()
    else:
        limit = time.time() - older_than * 86400
        count = sum(cache.remove(entry.key) for entry in cache.entries() if entry.last_use < limit)
    if not cache.writable:  # the warning that has been given says why
        raise InputError(f"removed {_kernels(count)}; the rest of {cache.root} cannot be removed")
    print(f"removed {_kernels(count)} from {cache.root}")
    return 0


def _find(entries: list[Entry], prefix: str) -> Entry:
    found = [entry for entry in entries if entry.key.startswith(prefix.lower())]
    if not found:
        raise InputError(f"no kernel has a key that starts with {prefix!r}; `spconv-cache list` prints keys")
    if len(found) > 1:
        keys = ", ".join(entry.key[: max(_PREFIX, len(prefix) + 4)] for entry in found[:8])
        more = ", …" if len(found) > 8 else ""
        raise InputError(f"{len(found)} kernels have a key that starts with {prefix!r}: {keys}{more}")
    return found[0]


def _row(entry: Entry) -> tuple[str, ...]:
    # What makes or relates coordinates has no channels, and says so by 0, or by nothing.
    channels = "operation" not in entry.parts or bool(entry.parts.get("c_in"))
    width = "-" if "operation" in entry.parts and "key_width" not in entry.parts else _part(entry, "key_width")
    return (
        entry.key[:_PREFIX],
        _kernel(entry),
        f"{_part(entry, 'c_in')}→{_part(entry, 'c_out')}" if channels else "-",
        str(width),
        _dtypes(entry) if channels else "-",
        _name(_part(entry, "target")),
        _name(_part(entry, "schedule")),
        _size(entry.size),
        _ago(time.time() - entry.last_use),
    )


def _kernel(entry: Entry) -> str:
    """What is computed, such as 3x3x3 of a submanifold convolution, or outputs 3x3x3 s2 p0x1x1."""
    operation, geometry = entry.parts.get("operation"), entry.parts.get("geometry")
    if operation is None:
        return _axes(_part(entry, "kernel_size", "network"))
    found = [str(operation)]
    if isinstance(geometry, dict):
        found.append(_axes(geometry["kernel_size"]))
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1)):
            values = geometry[name]
            if values != [usual] * 3:
                found.append(name[0] + (str(values[0]) if len(set(values)) == 1 else _axes(values)))
        found += ["transposed"] if geometry["transposed"] else []
    for name in ("levels", "maps"):
        items = entry.parts.get(name)
        found += [f"{len(items)} {name}"] if isinstance(items, list) else []
    return " ".join(found)


def _axes(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _part(entry: Entry, *names: str) -> object:
    """The first of `names` among the parts of the key, or among the options in them; "?" without any."""
    options = entry.parts.get("options")
    for place in (entry.parts, options if isinstance(options, dict) else {}):
        for name in names:
            if name in place:
                return place[name]
    return "?"


def _dtypes(entry: Entry) -> str:
    """The type of the features, and that of the result where it is another."""
    given = _part(entry, "dtype", "dtypes")
    dtypes = given if isinstance(given, list) else [given, _part(entry, "out_dtype")]
    return "→".join(dict.fromkeys(str(dtype) for dtype in dtypes if dtype != "?")) or "?"


def _name(value: object) -> str:
    """A short text for a part: its name where it has one."""
    if isinstance(value, dict):
        return str(value["name"]) if "name" in value else json.dumps(value, sort_keys=True)
    return str(value)


def _print_plain(rows: list[tuple[str, ...]]) -> None:
    table = [_COLUMNS, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(rows: list[tuple[str, ...]]) -> None:
    # Imported for terminals only: it takes longer than all the rest of this program.
    from rich.console import Console
    from rich.table import Table

    # Without a box and with one space between, the table fits 80 columns.
    table = Table(*_COLUMNS, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _kernels(count: int) -> str:
    return "1 kernel" if count == 1 else f"{count} kernels"


def _size(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    return f"{size / 2**10:.1f} KB" if size < 1000 * 2**10 else f"{size / 2**20:.1f} MB"


def _ago(seconds: float) -> str:
    """An age; "now" also for a time to come, which a clock that was set back leaves behind."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "now"


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).isoformat(sep=" ", timespec="seconds")


def _common(a: str, b: str) -> int:
    """Where two texts begin to differ."""
    return len(os.path.commonprefix([a, b]))


def _shorten(text: str, around: int = 0) -> str:
    """At most `_SHORT` characters of `text`, from a little before position `around`."""
    if len(text) <= _SHORT:
        return text
    start = max(0, around - _SHORT // 4)
    before = "…" if start else ""
    after = f"… ({len(text)} characters)" if start + _SHORT < len(text) else ""
    return before + text[start : start + _SHORT] + after


if __name__ == "__main__":
    sys.exit(main())
