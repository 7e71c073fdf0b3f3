"""Pass names → modules, imported on first use, and the command-line form `pass{option=value},pass`.

The name of the module is the name of the pass with underscores; tests/test_pass_registry.py keeps it so.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any, get_type_hints

from spconv_compiler.bindings import PassManager, ir
from spconv_compiler.errors import InputError
from spconv_compiler.passes.base import Pass, Upstream

PASS_NAMES = (
    "check-level",
    "choose-schedule",
    "convert-compact-to-gpu",
    "convert-compact-to-loops",
    "convert-cross-compact-to-gpu",
    "convert-cross-compact-to-loops",
    "convert-cross-map-to-gpu",
    "convert-cross-map-to-loops",
    "convert-frame-to-gpu",
    "convert-gemm-to-gpu",
    "convert-gemm-to-loops",
    "convert-host-to-plan",
    "convert-level-maps-to-gpu",
    "convert-map-to-gpu",
    "convert-map-to-loops",
    "convert-output-coords-to-gpu",
    "convert-output-coords-to-loops",
    "convert-pool-to-gpu",
    "convert-pool-to-loops",
    "convert-rows-to-gpu",
    "convert-rows-to-loops",
    "convert-spconv-to-stages",
    "convert-weight-to-gpu",
    "convert-weight-to-loops",
    "fit-waves",
    "fold-affine",
    "fuse-epilogue",
    "fuse-pointwise",
    "lower-memory-to-buffer",
    "lower-memory-to-global",
    "lower-mma-to-mfma",
    "lower-to-intrinsics",
    "overlap-launches",
    "relax-local-atomics",
)


def pass_class(name: str) -> type[Pass]:
    """The class of one of our passes."""
    module = importlib.import_module(f"spconv_compiler.passes.{name.replace('-', '_')}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Pass) and getattr(value, "name", None) == name:
            return value
    raise InputError(f"{module.__name__} defines no pass called {name}")


def parse_passes(text: str) -> list[Pass]:
    """Passes from `name{option=value other=value},name`; names that are not ours are upstream passes.

    Raises:
        InputError: an unknown pass, option or value; all unknown names are reported together.
    """
    parsed: list[Pass] = []
    unknown: list[str] = []
    for name, options, whole in _split(text):
        if name in PASS_NAMES:
            parsed.append(_with_options(pass_class(name), options))
        elif _is_upstream(whole):
            parsed.append(Upstream(label=name, pipeline=whole))
        else:
            unknown.append(whole)
    if unknown:
        raise InputError(
            f"unknown passes: {', '.join(unknown)}; accepted: {', '.join(PASS_NAMES)}, and upstream MLIR passes"
        )
    return parsed


def _is_upstream(text: str) -> bool:
    with ir.Context():
        try:
            PassManager.parse(f"builtin.module({text})")
        except (ValueError, ir.MLIRError):
            return False
    return True


def _split(text: str) -> list[tuple[str, str, str]]:
    """(name, options, whole item) of each comma-separated item, respecting brackets."""
    items, depth, start = [], 0, 0
    for index, character in enumerate([*text, ","]):
        depth += (character in "{(") - (character in "})")
        if character == "," and depth == 0:
            items.append(text[start:index].strip())
            start = index + 1
    if depth != 0:
        raise InputError(f"brackets do not match in {text!r}")
    result = []
    for item in filter(None, items):
        match = re.fullmatch(r"([\w.-]+)\s*(?:\{(.*)\})?", item, re.DOTALL)
        result.append((match[1], match[2] or "", item) if match else (item, "", item))
    return result


def _with_options(class_: type[Pass], text: str) -> Pass:
    fields = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(class_)}
    hints = get_type_hints(class_)
    values: dict[str, Any] = {}
    for item in text.split():
        key, equals, value = item.partition("=")
        if key not in fields or not equals:
            accepted = ", ".join(f"{name}=…" for name in fields) or "no options"
            raise InputError(f"pass {class_.name} has no option {item!r}; accepted: {accepted}")
        values[fields[key]] = _value(class_.name, key, value, hints[fields[key]])
    return class_(**values)


def _value(pass_name: str, key: str, text: str, type_: type) -> Any:
    if type_ is bool:
        if text in ("true", "false"):
            return text == "true"
    elif type_ is int:
        if re.fullmatch(r"-?\d+", text):
            return int(text)
    else:
        return text
    raise InputError(f"option {key}={text} of pass {pass_name}: expected {type_.__name__}")
