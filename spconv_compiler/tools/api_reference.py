"""`python -m spconv_compiler.tools.api_reference`: writes docs/api.md from signatures and docstrings.

Needs torch, whose modules it describes. With --check nothing is written; the exit status says whether the file is
current.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_TITLE = """# API reference

Made from docstrings by `python -m spconv_compiler.tools.api_reference`; edit those.
"""
_WIDTH = 100
# (module, what it is); names are its __all__, or what it defines.
_PAGES = (
    ("spconv_compiler", "functions on coordinates and features; numpy arrays or torch tensors"),
    ("spconv_compiler.pytorch", "modules with spconv's names; see [from_spconv.md](from_spconv.md)"),
    ("spconv_compiler.pytorch.functional", "functions on SparseConvTensors"),
    ("spconv_compiler.pytorch.convert", "weights of other libraries"),
    ("spconv_compiler.pytorch.utils", "points to voxels"),
    ("spconv_compiler.pytorch.ops", "the torch.library ops"),
)


def reference() -> str:
    """The text of docs/api.md."""
    return "\n".join([_TITLE, *(_page(name, what) for name, what in _PAGES)])


def _page(name: str, what: str) -> str:
    module = importlib.import_module(name)
    lines = [f"## {name}", "", f"{what[0].upper()}{what[1:]}.", "", *_text(inspect.getdoc(module) or "")]
    entries = dict(_entries(module))
    for entry, value in entries.items():
        family = [f"{entry[:-2]}{n}d" for n in (1, 2, 3)]
        if entry not in family[:2] or family[2] not in entries:
            together = entry == family[2] and set(family) <= set(entries)
            lines += _entry(entry, value, ", ".join(family) if together else entry)
    return "\n".join(lines)


def _entries(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Documented classes and functions, by name."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    for name in sorted(getattr(module, "__all__", own), key=str.lower):
        value = getattr(module, name)
        if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
            yield name, value


def _entry(name: str, value: Any, title: str) -> list[str]:
    lines = ["", f"### {title}", "", "```python", f"{name}{_signature(value)}", "```", ""]
    lines += _text(inspect.getdoc(value) or "")
    if inspect.isclass(value):
        members = [(key, member) for key, member in vars(value).items() if not key.startswith("_")]
        for key, member in members:
            described = _member(key, member)
            lines += [described] if described else []
    return lines


def _member(name: str, member: Any) -> str | None:
    """One line about a method or property."""
    kind = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    doc = inspect.getdoc(kind) if inspect.isfunction(kind) else None
    if not doc:
        return None
    shown = name if isinstance(member, property) else f"{name}{_signature(kind, method=True)}"
    return f"* `{shown}`: {' '.join(doc.split(chr(10) + chr(10))[0].split())}"


def _signature(value: Any, *, method: bool = False) -> str:
    """(arguments) → result, one argument a line where they are many; "" for classes without arguments of their own."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # of a built-in constructor
        return ""
    parameters = list(signature.parameters.values())
    plain = [_shown(one) for one in (parameters[1:] if method else parameters)]
    result = signature.return_annotation
    shown = inspect.Signature.empty if inspect.isclass(value) or result is inspect.Signature.empty else _Bare(result)
    text = str(signature.replace(parameters=plain, return_annotation=shown))
    if len(text) <= _WIDTH or method:
        return text
    parts: list[str] = []
    for one in plain:
        if one.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(str(one))
    arrow = "" if shown is inspect.Signature.empty else f" -> {shown}"
    return "(\n    " + ",\n    ".join(parts) + f",\n){arrow}"


class _Bare(str):
    """An annotation that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    note = parameter.annotation
    bare = note if note in ("Any", inspect.Parameter.empty) else _Bare(note)
    return parameter.replace(annotation=inspect.Parameter.empty if bare == "Any" else bare)


def _text(doc: str) -> list[str]:
    """A docstring as it is: its indentation and lists are part of what it says."""
    return ["```text", *doc.splitlines(), "```"] if doc else []


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the file; 1 when it is not current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file is not current")
    parser.add_argument("--output", type=Path, default=Path("docs/api.md"), help="the file (default: %(default)s)")
    options = parser.parse_args(arguments)
    text = reference()
    if options.check:
        current = options.output.exists() and options.output.read_text(encoding="utf-8") == text
        print(f"{options.output} is {'current' if current else 'not current: run this without --check'}")
        return 0 if current else 1
    options.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
