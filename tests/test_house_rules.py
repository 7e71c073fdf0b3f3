"""The rules of the house, as tests: each failure names the file and what it has to change."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterable

import pytest

REPO = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("spconv_compiler", "passes", "dialect")
SOURCES = sorted(path for package in PACKAGES for path in (REPO / package).rglob("*.py"))
TEXT_SUFFIXES = {".py", ".mlir", ".md", ".toml", ".cfg", ".yml", ""}
MAX_LINES = 400


def _name(path: pathlib.Path) -> str:
    return path.relative_to(REPO).as_posix()


@functools.cache
def _tree(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _texts() -> Iterable[pathlib.Path]:
    """Every text file that belongs to the repository."""
    folders = [REPO / name for name in (*PACKAGES, "lit_tests", "tests", ".ci")]
    for path in sorted([*REPO.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]):
        generated = {"__pycache__", "Output"}.intersection(path.parts) or path.name == ".lit_test_times.txt"
        if path.is_file() and not generated and path.suffix in TEXT_SUFFIXES:
            yield path


def test_files_are_small() -> None:
    lengths = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in _texts()}
    exempt = {"LICENSE", "README.md"}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES and name not in exempt} == {}


def test_package_list_is_complete() -> None:
    """A package that is missing from the list works in a checkout and is missing from the wheel."""
    block = re.search(r"^packages = \[(.*?)\]", (REPO / "pyproject.toml").read_text(encoding="utf-8"), re.S | re.M)
    assert block is not None
    listed = set(re.findall(r'"([\w.]+)"', block[1]))
    found = set()
    for path in SOURCES:
        if path.name == "__init__.py":
            dotted = _name(path.parent).replace("/", ".")
            found.add(dotted if dotted.startswith("spconv_compiler") else f"spconv_compiler.{dotted}")
    assert listed == found


def test_every_folder_with_modules_is_a_package() -> None:
    assert {_name(path.parent) for path in SOURCES if not (path.parent / "__init__.py").exists()} == set()


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_module(path: pathlib.Path) -> None:
    tree = _tree(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert future or len(tree.body) == 1, "the module lacks `from __future__ import annotations`"
    assert list(_undocumented(tree)) == []
    assert [f"line {node.lineno}" for node in ast.walk(tree) if _hides_errors(node)] == []


def _undocumented(tree: ast.Module) -> Iterable[str]:
    """Public functions and classes without docstring.

    One-liners say themselves; what a rewrite_… function does is in the Before and After of its module.
    """
    for node in tree.body:
        public = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith(("_", "rewrite_"))
        if public and len(node.body) > 1 and not ast.get_docstring(node):
            yield f"{node.name} has no docstring"


def _hides_errors(node: ast.AST) -> bool:
    """Handlers that catch everything, or that do nothing at all about what they catch."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    return node.type is None or all(isinstance(statement, ast.Pass) for statement in node.body)


def _imports(tree: ast.Module) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_only_bindings_imports_mlir() -> None:
    guilty = {_name(path) for path in SOURCES if any(name.split(".")[0] == "flydsl" for name in _imports(_tree(path)))}
    assert guilty == {"spconv_compiler/bindings.py"}


def test_only_env_reads_the_environment() -> None:
    guilty = set()
    for path in SOURCES:
        reads = any(name in ("os.environ", "os.getenv", "os.environb") for name in _imports(_tree(path)))
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
                reads = True
        if reads:
            guilty.add(_name(path))
    assert guilty == {"spconv_compiler/env.py"}


def test_no_code_compares_target_names() -> None:
    """Code asks the target for a fact; a comparison of its name has to be found again for every new target."""
    guilty = []
    for path in SOURCES:
        if "targets" not in path.parts:
            guilty += [f"{_name(path)}:{text.lineno}: {text.value!r}" for text in _compared(_tree(path))]
    assert guilty == []


def _compared(tree: ast.Module) -> Iterable[ast.Constant]:
    """Constants that name a chip or an architecture, in comparisons, matches and calls of startswith."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = list(node.args) if node.func.attr in ("startswith", "endswith", "find", "count") else []
        for part in parts:
            for item in ast.walk(part):
                if isinstance(item, ast.Constant) and re.match(r"(gfx|sm_|x86)\w*", str(item.value)):
                    yield item


@pytest.mark.parametrize("path", list(_texts()), ids=_name)
def test_text(path: pathlib.Path) -> None:
    """No reminders to oneself, and no path of somebody's machine."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b", text) == []
    assert re.findall(r"(?<![\w.])/(?:home|root|Users|mnt|srv|work|opt(?!/rocm))/[\w./-]+", text) == []
    assert text == "" or text.endswith("\n"), "the last line has no end"
    assert "\r" not in text and "\t" not in text


def test_the_rules_find_what_they_forbid() -> None:
    handlers = "try: f()\nexcept: g()\ntry: f()\nexcept OSError: pass\ntry: f()\nexcept OSError as e: g(e)"
    caught = [node for node in ast.walk(ast.parse(handlers)) if isinstance(node, ast.ExceptHandler)]
    assert [_hides_errors(node) for node in caught] == [True, True, False]
    compared = """
if target.name == "gfx950" or chip in ("gfx942", "other"): pass
if name.startswith("x86-64"): pass
match name:
    case "sm_90": pass
get_target("gfx950")
"""
    assert {text.value for text in _compared(ast.parse(compared))} == {"gfx950", "gfx942", "x86-64", "sm_90"}
    public = """
def f():
    a()
    b()
def g(): a()
def _h():
    a()
    b()
def i():
    '''Doc.'''
    b()
class C:
    a = 1
    b = 2
"""
    assert list(_undocumented(ast.parse(public))) == ["f has no docstring", "C has no docstring"]
    assert list(_imports(ast.parse("import a.b\nfrom c import d, e"))) == ["a.b", "c.d", "c.e"]


# Messages: each one that a verifier or a pass can give is expected by some lit test.


def _messages(path: pathlib.Path) -> Iterable[tuple[int, str]]:
    """(line, longest literal part) of the messages of verifiers (yield "…") and passes (self.fail(op, "…"))."""
    for node in ast.walk(_tree(path)):
        message: ast.expr | None = None
        if isinstance(node, ast.Yield):
            message = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fail":
            message = node.args[1] if len(node.args) > 1 else None
        parts = message.values if isinstance(message, ast.JoinedStr) else [message]
        literals = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if literals:
            yield node.lineno, max(literals, key=len)


MESSAGES = {
    f"{_name(path)}:{line}": literal
    for folder in ("dialect", "passes")
    for path in sorted((REPO / folder).rglob("*.py"))
    for line, literal in _messages(path)
}


@functools.cache
def _expected(folder: str) -> str:
    """Every line of lit_tests/<folder> that expects an error."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((REPO / "lit_tests" / folder).glob("*.mlir"))]
    return "\n".join(line for text in texts for line in re.findall(r"//.*(?:expected-error|error:).*", text))


@pytest.mark.parametrize("place", MESSAGES)
def test_message_is_tested(place: str) -> None:
    folder = place.partition("/")[0]
    if MESSAGES[place] not in _expected(folder):
        pytest.fail(f"{place}: no test in lit_tests/{folder} expects the message {MESSAGES[place]!r}", pytrace=False)


def test_every_op_has_lit_tests() -> None:
    """Round trip in dialect/*-ops.mlir, a broken rule in dialect/*-invalid.mlir."""
    irdl = "".join(path.read_text(encoding="utf-8") for path in (REPO / "dialect").glob("*.irdl.mlir"))
    ops = re.findall(r"irdl\.operation @(\w+)", irdl)
    assert ops
    for kind in ("ops", "invalid"):
        files = (REPO / "lit_tests" / "dialect").glob(f"*-{kind}.mlir")
        text = "".join(path.read_text(encoding="utf-8") for path in files)
        assert [op for op in ops if f'"spconv.{op}"(' not in text] == [], kind
