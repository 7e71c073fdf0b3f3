"""Ops between two coordinate sets through HIP on the shim: graphs without host reads, and tensors on a GPU."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conv_cases import voxels
from cross_cases import SHAPE, cross_case
from hip_harness import Shim
from test_hip_tensors import Gpu, GpuTensor, gpu

import spconv_compiler as sc
from spconv_compiler import reference, sparse_driver_gpu
from spconv_compiler import reference_cross as rc
from spconv_compiler.arrays import as_array
from spconv_compiler.coordinates import Box
from spconv_compiler.driver import load_conv
from spconv_compiler.driver_gpu import GpuConvKernel
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.options import CompileOptions
from spconv_compiler.runtime.calls import HostCall
from spconv_compiler.runtime.hip import Stream, capture
from spconv_compiler.runtime.hip_library import HipError, load_hip
from spconv_compiler.sparse_driver import load_sparse
from spconv_compiler.sparse_driver_gpu import GpuSparseKernel
from spconv_compiler.sparse_options import SparseOptions

__all__ = ["gpu"]
pytestmark = pytest.mark.usefixtures("shim")

GEOMETRY, GRID = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1)), rc.Grid.of(3, 2, 1)
ROWS, CAPACITY, C_IN, C_MID, C_OUT = 120, 320, 3, 5, 4
WHOLE, HALF = Box((0, 0, 0, 0), (1, 8, 9, 10)), Box((0, 0, 0, 0), (1, 4, 4, 5))

Words = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float32]


class TwoLayers:
    """A strided layer and a submanifold one behind it, whose coordinates never leave the device.

    Everything has its place before the work is queued: `queue` calls nothing but copies in and launches.
    """

    def __init__(self, stream: Stream) -> None:
        self.outputs = load_sparse(SparseOptions("outputs", GEOMETRY, target="gfx950"))
        options: dict[str, Any] = {"c_in": C_IN, "c_out": C_MID, "bias": True, "target": "gfx950"}
        self.strided = load_sparse(SparseOptions("conv", GEOMETRY, **options))
        self.same = load_conv(CompileOptions((3, 3, 3), C_MID, C_OUT, dtype="f32", out_dtype="f32", target="gfx950"))
        assert isinstance(self.outputs, GpuSparseKernel) and isinstance(self.strided, GpuSparseKernel)
        assert isinstance(self.same, GpuConvKernel)
        rng = np.random.default_rng(0)
        sizes_of = ((C_MID, 3, 3, 3, C_IN), (C_OUT, 3, 3, 3, C_MID))
        self.weights = [rng.integers(-2, 3, size).astype(np.float32) for size in sizes_of]
        self.bias = rng.integers(-3, 4, C_MID).astype(np.float32)
        self.coords, self.features = np.zeros((ROWS, 4), np.int32), np.zeros((ROWS, C_IN), np.float32)

        self.call = call = HostCall(self.outputs._device, stream.handle)
        sizes = {"rows": ROWS, "coarse_rows": CAPACITY, "threads": 1}
        self.numbers = [
            {**self.outputs.output_numbers(WHOLE, HALF)[0], **sizes},
            {**self.strided.map_numbers(WHOLE, HALF)[0], **sizes},
            {**HALF.symbols((3, 3, 3), (1, 1, 1)), "rows": CAPACITY, "threads": 1},
        ]
        count = np.full(2, ROWS, np.int32)
        first = {
            "coords": call.allocate("coords", self.coords.nbytes),
            "coords_count": call.place("coords_count", as_array(count, "count")),
            "out": call.allocate("out", 16 * CAPACITY),
            "out_count": call.allocate("out_count", 8),
        }
        middle = call.allocate("middle", 4 * CAPACITY * C_MID)
        second = {
            **{name: first[name] for name in ("coords", "coords_count")},
            **{"out_coords": first["out"], "out_coords_count": first["out_count"], "out": middle},
            **{"features": call.allocate("features", self.features.nbytes)},
            **{"bias": call.place("bias", as_array(self.bias, "bias")), **self.strided.pack(array(self.weights[0]))},
        }
        third = {"coords": first["out"], "features": middle, "out": call.allocate("result", 4 * CAPACITY * C_OUT)}
        third |= self.same.pack(array(self.weights[1]))
        self.buffers = [first, second, third]
        self.steps = [(0, self.outputs._plan, "coords")]
        self.steps += [(1, self.strided._plan, group) for group in ("map", "pairs", "output")]
        self.steps += [(2, self.same._plan, group) for group in ("pairs", "output")]
        for place, plan, group in self.steps:
            given = self.buffers[place]
            self.buffers[place] = {**given, **plan.allocate(group, self.numbers[place], given, call)}
        stream.synchronize()

    def queue(self) -> None:
        copy_in = self.call.device.copy_in
        copy_in(self.buffers[0]["coords"], self.coords.ctypes.data, self.call.stream)
        copy_in(self.buffers[1]["features"], self.features.ctypes.data, self.call.stream)
        for place, plan, group in self.steps:
            plan.launch(group, self.numbers[place], self.buffers[place], self.call)

    def result(self, stream: Stream) -> tuple[Words, Words, Rows]:
        """(how many outputs there are, their coordinates, the rows of the second layer)."""
        count, coords = np.empty(2, np.int32), np.empty((CAPACITY, 4), np.int32)
        rows = np.empty((CAPACITY, C_OUT), np.float32)
        found = (self.buffers[0]["out_count"], self.buffers[0]["out"], self.buffers[2]["out"])
        for host, buffer in zip((count, coords, rows), found, strict=True):
            self.call.device.copy_out(host.ctypes.data, buffer, self.call.stream)
        stream.synchronize()
        return count, coords, rows

    def expected(self) -> tuple[Words, Rows]:
        coords = np.array(rc.outputs(self.coords, GRID, shape=(5, 5, 6)), np.int32)
        middle = rc.conv3d(self.coords, coords, self.features, self.weights[0], GRID, self.bias)
        return coords, reference.subm_conv3d(coords, middle, self.weights[1])


class _Event:
    """As torch's: the stand-in has one stream, on which everything is in order."""

    def record(self, stream: Any) -> None:
        self.stream = stream


@pytest.fixture
def torch_gpu(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The stand-in for torch's side of a GPU."""
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    return gpu


def array(values: Any) -> Any:
    return as_array(values, "weight")


def test_two_layers_in_one_graph(shim: Shim) -> None:
    """Captured once, replayed on other coordinates with other numbers of outputs: the host reads none of them."""
    with Stream(load_hip()) as stream:
        layers = TwoLayers(stream)
        shim.launched.clear()
        with capture(stream) as captured:
            layers.queue()
        assert shim.launched == [], "a capture runs nothing"
        counts = set()
        with captured.graph as graph:
            # The smaller the box, the fewer the outputs.
            for seed, shape in enumerate((SHAPE, (5, 6, 7), (4, 4, 5))):
                layers.coords[:] = voxels(ROWS, shape, batches=2, seed=seed)
                layers.features[:] = np.random.default_rng(seed).integers(-3, 4, layers.features.shape)
                graph.launch(stream)
                try:
                    count, coords, rows = layers.result(stream)
                except HipError:
                    pytest.fail(f"the simulator says: {shim.faults}")
                wanted, exact = layers.expected()
                counts.add(int(count[0]))
                assert count.tolist() == [len(wanted)] * 2 and np.array_equal(coords[: len(wanted)], wanted)
                assert (coords[len(wanted) :, 0] == -1).all()
                assert np.array_equal(rows[: len(wanted)], exact)
        assert len(counts) == 3
        kernels = [name.partition("_k32")[0].partition("_t27")[0] for name in shim.launched[:8]]
        made = ["fill_coarse", "scatter_coarse", "fill_table", "output_lookup", "share_rows"]
        assert kernels == ["clear_marks", "mark_outputs", "read_marks", *made]


def on_gpu(gpu: Gpu, values: Any) -> Any:
    return gpu.put(torch.from_numpy(np.ascontiguousarray(values)))


def test_tensors_on_a_gpu(torch_gpu: Gpu) -> None:
    """Coordinates and features stay there; the result is made there."""
    case = cross_case("k3s2p1", 90, seed=1)
    arrays = (case.coords, case.features, case.weight, case.bias)
    coords, features, weight, bias = (on_gpu(torch_gpu, item) for item in arrays)
    options = {"stride": 2, "padding": 1, "target": "gfx950"}
    out_coords, out = sc.sparse_conv3d(coords, features, weight, bias, **options)
    assert isinstance(out_coords, GpuTensor) and isinstance(out, GpuTensor)
    found = torch_gpu.fetch(out_coords).numpy()
    assert np.array_equal(found, rc.outputs(case.coords, GRID)) and out_coords.dtype == torch.int32
    assert np.array_equal(torch_gpu.fetch(out).numpy(), case.expected(found))
    # No target is named: the one that runs where the coordinates lie.
    _, pooled = sc.sparse_max_pool3d(coords, features, 3, stride=2, padding=1)
    assert np.array_equal(torch_gpu.fetch(pooled).numpy(), rc.pool3d(case.coords, found, case.features, GRID, "max"))
    with pytest.raises(InputError, match="coords are on GPU 0 but weight is on the cpu; accepted: one place for all"):
        sc.sparse_conv3d(coords, features, torch.from_numpy(case.weight), bias, **options)
    with pytest.raises(InputError, match="tensors lie on a GPU; accepted by target x86-64"):
        sc.sparse_conv3d(coords, features, weight, bias, stride=2, target="cpu")


def test_a_capacity_on_a_gpu_reads_nothing(torch_gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    case = cross_case("k3s2p1", 90, seed=1)
    coords = torch_gpu.put(torch.from_numpy(case.coords))
    arrays = (case.features, case.weight, case.bias)
    operands = [on_gpu(torch_gpu, item) for item in arrays]
    grid = {"stride": 2, "padding": 1, "spatial_shape": SHAPE, "batch_size": 2, "target": "gfx950"}
    with monkeypatch.context() as patch:
        patch.setattr(sparse_driver_gpu, "read", None)
        patch.setattr(GpuTensor, "tolist", None)
        map_ = sc.build_map(coords, 3, **grid, capacity=200)
        out = sc.mapped_conv3d(*operands, map=map_)
    wanted = np.array(rc.outputs(case.coords, GRID, shape=GRID.output_shape(SHAPE)), np.int32)
    assert map_.out_total() == len(wanted)
    assert np.array_equal(torch_gpu.fetch(out).numpy()[: len(wanted)], case.expected(wanted))


def test_what_a_call_uploads_stays_until_it_is_read() -> None:
    """Copies run when their turn comes: an array that only a call knows must live until then."""
    stream = Stream(load_hip())
    kernel = load_sparse(SparseOptions("outputs", GEOMETRY, target="gfx950"))
    assert isinstance(kernel, GpuSparseKernel)
    call = HostCall(kernel.device, stream.handle)
    words = np.arange(1 << 20, dtype=np.int32)
    watched = weakref.ref(words)
    buffer = call.place("words", as_array(words, "words"))
    del words
    assert watched() is not None
    back = np.zeros(1 << 20, np.int32)
    call.device.copy_out(back.ctypes.data, buffer, stream.handle)
    stream.close()
    assert np.array_equal(back, np.arange(1 << 20))
    del call, buffer
    assert watched() is None
