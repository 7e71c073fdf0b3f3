"""Tensors and arrays as the driver sees them: what is accepted, what is copied, what a result is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from spconv_compiler.arrays import Array, as_array, dtype_name, empty_like_kind, is_tensor
from spconv_compiler.coordinates import numpy_view
from spconv_compiler.errors import InputError, LaunchError


def contents(array: Array) -> np.ndarray:
    return numpy_view(array)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "f32"),
        (torch.float16, "f16"),
        (torch.bfloat16, "bf16"),
        (torch.int32, "i32"),
        (torch.int64, "i64"),
        (torch.uint8, "uint8"),
        (torch.float64, "float64"),
    ],
)
def test_dtype_names_of_tensors(dtype: torch.dtype, name: str) -> None:
    assert dtype_name(torch.zeros(1, dtype=dtype)) == as_array(torch.zeros(1, dtype=dtype), "x").dtype == name


def test_dtype_names_of_arrays() -> None:
    names = {np.float32: "f32", np.float16: "f16", np.int32: "i32", np.int64: "i64", np.int8: "int8", bool: "bool"}
    assert {dtype: dtype_name(np.zeros(1, dtype)) for dtype in names} == names


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_contiguous_memory_is_shared(kind: type) -> None:
    source = kind(np.arange(12, dtype=np.float32).reshape(3, 4))
    array = as_array(source, "x")
    assert array.source is source
    assert array.shape == (3, 4)
    assert array.pointer == (source.data_ptr() if is_tensor(source) else source.ctypes.data)


def test_rows_of_a_tensor_are_not_copied() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    assert as_array(base[1:], "x").pointer == base.data_ptr() + 16


@pytest.mark.parametrize(
    "view",
    [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[::-1] if isinstance(x, np.ndarray) else x.flip(0)],
    ids=["transposed", "every second column", "reversed"],
)
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_strided_views_are_gathered(kind: type, view: type) -> None:
    source = view(kind(np.arange(12, dtype=np.float32).reshape(3, 4)))
    np.testing.assert_array_equal(contents(as_array(source, "x")), np.asarray(source))


def test_broadcast_views_are_gathered() -> None:
    np.testing.assert_array_equal(contents(as_array(torch.ones(1).expand(3, 2), "x")), np.ones((3, 2)))
    np.testing.assert_array_equal(contents(as_array(np.broadcast_to(np.float32(1), (3, 2)), "x")), np.ones((3, 2)))


def test_unaligned_memory_is_copied() -> None:
    memory = bytearray(1 + 4 * 6)
    array = np.frombuffer(memory, np.float32, 6, offset=1)
    array[:] = range(6)
    for source in (array, torch.frombuffer(memory, dtype=torch.float32, count=6, offset=1)):
        found = as_array(source, "x")
        assert found.pointer % 4 == 0
        np.testing.assert_array_equal(contents(found), range(6))


def test_read_only_arrays_are_taken() -> None:
    source = np.zeros(3, np.float32)
    source.flags.writeable = False
    assert as_array(source, "x").source is source


def test_parameters_and_subclasses_are_tensors() -> None:
    class Tagged(torch.Tensor):
        pass

    parameter = torch.nn.Parameter(torch.ones(2))
    assert as_array(parameter, "x").pointer == parameter.data_ptr()
    assert as_array(torch.ones(2).as_subclass(Tagged), "x").dtype == "f32"


def test_lazily_negated_tensors_are_resolved() -> None:
    lazy = torch.tensor([[1 + 2j]]).conj().imag
    assert lazy.is_neg()
    np.testing.assert_array_equal(contents(as_array(lazy, "x")), [[-2.0]])


def test_empty_tensors_need_no_memory() -> None:
    assert as_array(torch.zeros(0, 4), "x").shape == (0, 4)


def traced() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(2, 2)


def freed() -> torch.Tensor:
    tensor = torch.zeros(2, 2)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [1.0, 2.0], ["list", "torch.Tensor", "numpy.ndarray"]),
        (lambda: 1.0, ["float"]),
        (lambda: None, ["NoneType"]),
        (lambda: torch.zeros(2, device="meta"), ["device meta", "cpu"]),
        (lambda: torch.eye(2).to_sparse(), ["sparse_coo", "strided"]),
        (lambda: torch.eye(2).to_sparse_csr(), ["sparse_csr", "strided"]),
        (lambda: torch.eye(2).to_mkldnn(), ["mkldnn"]),
        (lambda: torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(3, 3)]), ["nested"]),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged), ["nested"]),
        (traced, ["no memory"]),
        (freed, ["no memory"]),
        (lambda: np.zeros(2, ">f4"), [">f4", "native order"]),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_refused(make: type, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        as_array(make(), "the thing")
    for word in ["the thing", *words]:
        assert word in str(caught.value)


def test_transformed_tensors_are_refused() -> None:
    def look(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(InputError, match="x has no memory"):
            as_array(x, "x")
        return x.sum()

    torch.vmap(look)(torch.zeros(3, 2))
    torch.func.grad(look)(torch.zeros(3, 2))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_results_of_tensors(dtype: str) -> None:
    out = empty_like_kind(torch.zeros(1), (2, 3), dtype)
    assert type(out.source) is torch.Tensor
    assert (dtype_name(out.source), out.source.shape, out.pointer) == (dtype, (2, 3), out.source.data_ptr())


def test_the_default_device_does_not_decide_where_results_are() -> None:
    with torch.device("meta"):
        assert empty_like_kind(torch.zeros(1), (2, 3), "f32").source.is_cpu


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_results_of_arrays(dtype: str) -> None:
    out = empty_like_kind(np.zeros(1, np.float32), (2, 3), dtype)
    assert (type(out.source), dtype_name(out.source), out.source.shape) == (np.ndarray, dtype, (2, 3))
    assert out.pointer == out.source.ctypes.data


def test_numpy_has_no_bf16_of_its_own() -> None:
    with pytest.raises(InputError, match="bf16.*accepted: f32, f16, or torch tensors"):
        empty_like_kind(np.zeros(1, np.float32), (2, 3), "bf16")


@pytest.mark.parametrize("like", [np.zeros(1, np.float32), torch.zeros(1)])
def test_results_that_do_not_fit_are_refused(like: object) -> None:
    with pytest.raises(LaunchError, match=r"\[1073741824, 1073741824\] in f32 cannot be allocated"):
        empty_like_kind(like, (2**30, 2**30), "f32")


def test_torch_is_not_imported_to_look_at_arrays() -> None:
    program = """
import sys, numpy
from spconv_compiler.arrays import as_array, is_tensor
assert not is_tensor(1) and as_array(numpy.zeros(2, numpy.float32), "x").dtype == "f32"
assert "torch" not in sys.modules
import types
sys.modules["torch"] = types.ModuleType("torch")  # as another thread sees it while the import runs
assert not is_tensor(1)
del sys.modules["torch"]
import torch
assert is_tensor(torch.zeros(1))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
