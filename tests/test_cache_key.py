"""The cache key: what decides the code changes it, nothing else does, and `explain` agrees with it."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spconv_compiler.cache_key import ABSENT, cache_key, canonical, explain, printed
from spconv_compiler.options import CompileOptions


@dataclasses.dataclass(frozen=True)
class Facts:
    name: str = "gfx950"
    wave: int = 64
    lds_bytes: int = 163840
    features: frozenset[str] = frozenset({"mfma", "xf32"})


TOOLCHAIN = {"sources": "12ab", "flydsl": "0.5.0", "flydsl_native": "34cd", "linker": "/a/ld.lld:1:2"}


def base() -> dict[str, object]:
    return {
        "kernel_size": (3, 3, 3),
        "c_in": 64,
        "c_out": 128,
        "key_width": 32,
        "dtypes": ("bf16", "f32"),
        "schedule": {"name": "pairs_m16", "k_unroll": 4},
        "target": Facts(),
        "options": {"bias": False, "activation": "none"},
        "pipeline": "builtin.module(canonicalize,cse)",
        "toolchain": dict(TOOLCHAIN),
    }


CHANGES = {
    "kernel size": {"kernel_size": (3, 3, 5)},
    "axis of the kernel size": {"kernel_size": (5, 3, 3)},
    "input channels": {"c_in": 65},
    "output channels": {"c_out": 64},
    "channels swapped": {"c_in": 128, "c_out": 64},
    "key width": {"key_width": 64},
    "feature type": {"dtypes": ("f16", "f32")},
    "result type": {"dtypes": ("bf16", "bf16")},
    "schedule": {"schedule": {"name": "pairs_m64", "k_unroll": 4}},
    "parameter of the schedule": {"schedule": {"name": "pairs_m16", "k_unroll": 2}},
    "target": {"target": Facts(name="gfx942")},
    "fact of the target": {"target": Facts(lds_bytes=65536)},
    "feature of the target": {"target": Facts(features=frozenset({"mfma"}))},
    "option": {"options": {"bias": True, "activation": "none"}},
    "one more option": {"options": {"bias": False, "activation": "none", "fast": False}},
    "pipeline": {"pipeline": "builtin.module(cse,canonicalize)"},
    "sources": {"toolchain": {**TOOLCHAIN, "sources": "12ac"}},
    "flydsl": {"toolchain": {**TOOLCHAIN, "flydsl": "0.5.1"}},
    "native libraries": {"toolchain": {**TOOLCHAIN, "flydsl_native": "34ce"}},
    "linker": {"toolchain": {**TOOLCHAIN, "linker": "/a/ld.lld:1:3"}},
    "CPU of the host": {"toolchain": {**TOOLCHAIN, "host_cpu": "avx2 fma"}},
    "a part nobody knew": {"weights": "packed"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_each_change_changes_the_key_and_is_explained(change):
    changed = {**base(), **change}
    assert cache_key(changed) != cache_key(base())
    assert {difference.part.partition(".")[0] for difference in explain(base(), changed)} == set(change)


def test_all_changes_give_different_keys():
    keys = [cache_key({**base(), **change}) for change in CHANGES.values()]
    assert len(set(keys)) == len(keys)


OPTION_CHANGES = {
    "kernel_size": (5, 5, 5),
    "c_in": 7,
    "c_out": 9,
    "key_width": 64,
    "dtype": "bf16",
    "out_dtype": "f16",
    "dilation": (2, 1, 1),
    "bias": True,
    "activation": "relu",
    "negative_slope": 0.5,
    "residual": True,
    "mapper": "z_delta",
    "target": "gfx950",
    "schedule": "other",
}


@pytest.mark.parametrize("field", dataclasses.fields(CompileOptions), ids=lambda field: field.name)
def test_every_compile_option_counts_unless_it_is_marked(field):
    options = CompileOptions(kernel_size=(3, 3, 3), c_in=4, c_out=4)
    if field.metadata.get("affects_code", True):
        changed = dataclasses.replace(options, **{field.name: OPTION_CHANGES[field.name]})
        assert cache_key(changed.key_parts()) != cache_key(options.key_parts())
    else:
        other = not options.verify if field.name == "verify" else "all"
        changed = dataclasses.replace(options, **{field.name: other})
        assert cache_key(changed.key_parts()) == cache_key(options.key_parts())


def test_order_of_insertion_does_not_count():
    parts = base()
    turned = dict(reversed(parts.items()))
    turned["toolchain"] = dict(reversed(TOOLCHAIN.items()))
    assert cache_key(turned) == cache_key(parts)
    assert explain(turned, parts) == []


def test_the_hashed_text_is_fixed():
    text = 'format = 1\nkernel_size = [3,3,3]\nc_in = 2\npipeline = "cse"\nextra = {"a":1,"b":null}\n'
    parts = {"extra": {"b": None, "a": 1}, "pipeline": "cse", "c_in": 2, "kernel_size": (3, 3, 3)}
    assert printed(parts) == text
    assert cache_key(parts) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, "1"), (1, True), (0, False), (1, 1.0), (None, "null"), ([1], 1), ({}, None), ([], {}), (0.0, -0.0)],
)
def test_values_of_different_types_differ(a, b):
    assert cache_key({"c_in": a}) != cache_key({"c_in": b})
    assert len(explain({"c_in": a}, {"c_in": b})) == 1


def test_text_cannot_imitate_another_part():
    assert cache_key({"pipeline": 'x"\ntoolchain = "y'}) != cache_key({"pipeline": "x", "toolchain": "y"})
    with pytest.raises(TypeError, match="identifier"):
        cache_key({"c_in = 3\nc_out": 4})


def test_canonical_forms():
    class Layout(enum.Enum):
        PACKED = 3

    parts = {"layout": Layout.PACKED, "target": Facts(), "folder": Path("/a/b"), "names": {"b", "a"}}
    assert canonical(parts) == {
        "layout": "Layout.PACKED",
        "target": {
            "class": "Facts",
            "name": "gfx950",
            "wave": 64,
            "lds_bytes": 163840,
            "features": ["mfma", "xf32"],
        },
        "folder": "/a/b",
        "names": ["a", "b"],
    }


@pytest.mark.parametrize("value", [object(), b"bytes", 1j, lambda: None, Facts, {1: 2}])
def test_a_value_without_a_fixed_form_is_refused_by_name(value):
    with pytest.raises(TypeError, match=r"options\.tile\[1\]"):
        cache_key({"options": {"tile": [1, value]}})


def test_explain_names_nested_parts_with_both_values():
    changed = {**base(), "toolchain": {**TOOLCHAIN, "linker": "missing"}, "c_in": 32}
    del changed["schedule"]
    assert [str(difference) for difference in explain(base(), changed)] == [
        "c_in: 64 -> 32",
        f"schedule.k_unroll: 4 -> {ABSENT}",
        f'schedule.name: "pairs_m16" -> {ABSENT}',
        'toolchain.linker: "/a/ld.lld:1:2" -> "missing"',
    ]


# Few characters, but those that a printed form could stumble over.
TEXTS = st.text('a.=,"\n\\{[é\ud800', max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
PARTS = st.dictionaries(st.sampled_from(["c_in", "target", "options", "zeta", "a"]), VALUES, max_size=4)


@given(a=PARTS, b=PARTS)
def test_explain_is_empty_exactly_when_keys_are_equal(a, b):
    assert (explain(a, b) == []) == (cache_key(a) == cache_key(b))
    assert explain(a, a) == []


@given(parts=PARTS)
def test_parts_read_back_from_disk_have_the_same_key(parts):
    assert cache_key(json.loads(json.dumps(canonical(parts)))) == cache_key(parts)
