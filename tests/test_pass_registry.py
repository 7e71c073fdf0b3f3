"""Pass names, files, classes and lit tests agree; the command-line form of passes."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import pytest

from spconv_compiler.errors import InputError
from spconv_compiler.levels import LEVELS
from spconv_compiler.passes.base import Pass, Upstream
from spconv_compiler.passes.registry import PASS_NAMES, parse_passes, pass_class

REPO = pathlib.Path(__file__).resolve().parent.parent
LIT_PASSES = REPO / "lit_tests" / "passes"
# Files of passes/ that hold no pass.
SUPPORT = {"__init__", "activation", "base", "registry", "kernel_builder", "kernel_module", "reach"}


def test_registry_is_the_folder() -> None:
    files = {path.stem for path in (REPO / "passes").glob("*.py")} - SUPPORT
    assert {name.replace("-", "_") for name in PASS_NAMES} == files
    assert list(PASS_NAMES) == sorted(set(PASS_NAMES))


@pytest.mark.parametrize("name", PASS_NAMES)
def test_pass(name: str) -> None:
    class_ = pass_class(name)
    assert class_.name == name
    assert class_.__name__ == "".join(part.capitalize() for part in name.split("-"))
    assert class_.__module__ == f"spconv_compiler.passes.{name.replace('-', '_')}"
    assert all(level == "" or level in LEVELS for level in (class_.needs, class_.gives))
    assert class_.run is not Pass.run
    assert class_.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert (LIT_PASSES / f"{name}.mlir").exists()


@pytest.mark.parametrize("name", PASS_NAMES)
def test_a_pass_that_can_refuse_has_a_negative_test(name: str) -> None:
    source = (REPO / "passes" / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    if "self.fail(" in source or "raise PassError" in source:
        tests = [LIT_PASSES / f"{name}-{kind}.mlir" for kind in ("invalid", "precondition")]
        assert any(test.exists() for test in tests)


def test_lit_tests_belong_to_passes() -> None:
    stems = {re.sub(r"-(invalid|precondition)$", "", path.stem) for path in LIT_PASSES.glob("*.mlir")}
    # A long family may be cut into files: <pass>-<part>.mlir.
    assert {stem for stem in stems if not any(f"{stem}-".startswith(f"{name}-") for name in PASS_NAMES)} == set()


@pytest.mark.parametrize("name", PASS_NAMES)
def test_printed_form_parses_to_the_same_pass(name: str) -> None:
    plain = pass_class(name)()
    assert parse_passes(str(plain)) == [plain]
    # Every field off its default, one at a time.
    for field in dataclasses.fields(plain):
        changed = dataclasses.replace(plain, **{field.name: _other(field.default)})
        assert parse_passes(str(changed)) == [changed] != [plain]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else f"{value}x"


def test_options_and_order() -> None:
    first, second, third = parse_passes("choose-schedule{target=gfx950 schedule=pairs_m16}, cse ,check-level")
    assert str(first) == "choose-schedule{target=gfx950 schedule=pairs_m16}"
    assert isinstance(second, Upstream) and second.pipeline == "cse"
    assert str(third) == "check-level"
    assert parse_passes("") == [] == parse_passes(" , ")


def test_upstream_passes_keep_their_options_and_nesting() -> None:
    text = "canonicalize{max-iterations=3 top-down=false},func.func(cse,canonicalize)"
    assert [str(item) for item in parse_passes(text)] == [text.partition("},")[0] + "}", text.partition("},")[2]]


@dataclasses.dataclass(frozen=True)
class Typed(Pass):
    """A pass with an option of each type."""

    count: int = 1
    fast_path: bool = False
    label: str = "a"
    name = "typed"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spconv_compiler.passes.registry.PASS_NAMES", ("typed",))
    monkeypatch.setattr("spconv_compiler.passes.registry.pass_class", lambda name: Typed)


@pytest.mark.usefixtures("typed")
def test_option_types() -> None:
    assert parse_passes("typed{count=-3 fast-path=true label=b}") == [Typed(-3, True, "b")]
    assert parse_passes("typed{fast-path=false}") == [Typed()]


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("typed{count=many}", "option count=many of pass typed: expected int"),
        ("typed{count=1.5}", "option count=1.5 of pass typed: expected int"),
        ("typed{fast-path=yes}", "option fast-path=yes of pass typed: expected bool"),
        ("typed{fast_path=true}", "pass typed has no option 'fast_path=true'; accepted: count=…, fast-path=…, label=…"),
        ("typed{label}", "pass typed has no option 'label'"),
        ("typed{count=1", "brackets do not match"),
        ("typed}", "brackets do not match"),
        ("typde", "unknown passes: typde; accepted: typed, and upstream MLIR passes"),
        ("typde,cse,canonicalise{a=1}", "unknown passes: typde, canonicalise{a=1}; accepted"),
        ("canonicalize{no-such-option=1}", "unknown passes: canonicalize{no-such-option=1}"),
        ("typed extra", "unknown passes: typed extra"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_passes(text)
    assert message in str(caught.value)
