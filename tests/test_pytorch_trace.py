"""The ops in traces: torch.compile without a break, torch.export, sizes that no trace knows, one graph for all."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from pytorch_cases import SHAPES, sparse, whole
from torch import Tensor, nn

import spconv_compiler as sc
import spconv_compiler.pytorch as spconv
from spconv_compiler import api
from spconv_compiler.errors import SpconvError
from spconv_compiler.pytorch import functional, maps, ops

ONES, ZEROS, TWOS = [1, 1, 1], [0, 0, 0], [2, 2, 2]


class Net(nn.Module):
    """All kinds of layers: shared keys, a residual, batch norm behind unknown sizes, an inverse, a pool, dense()."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = spconv.SparseSequential(
            *(spconv.SubMConv3d(4, 4, 3, indice_key="a"), nn.BatchNorm1d(4), nn.ReLU()),
            spconv.SubMConv3d(4, 4, 3, indice_key="a"),
        )
        self.down = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="d")
        self.norm = nn.BatchNorm1d(4)
        self.middle = spconv.SubMConv3d(4, 4, 1)
        self.up = spconv.SparseInverseConv3d(4, 4, 3, "d")
        self.pool = spconv.SparseMaxPool3d(3, 2, 1)

    def forward(self, x: Any) -> tuple[Tensor, Tensor]:
        fine = self.encode(x)
        y = self.down(fine)
        y = y.replace_feature(self.norm(y.features))
        up = self.up(self.middle(y)) + fine
        return self.pool(up).dense(), up.features


class FromTensors(nn.Module):
    """A network behind tensors and numbers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: Tensor, indices: Tensor, shape: list[int], batch_size: int) -> Any:
        return self.net(spconv.SparseConvTensor(features, indices, shape, batch_size))


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def net() -> Any:
    return whole(Net())


def arguments(x: Any) -> tuple[Any, ...]:
    return x.features, x.indices, x.spatial_shape, x.batch_size


def check(run: Any, net: nn.Module, x: Any) -> None:
    for out, wanted in zip(run(x), net(x), strict=True):
        assert torch.equal(out, wanted)


def test_compile_without_a_break_and_once_for_all_sizes(net: Any) -> None:
    """Rows, spatial shape and batch change from call to call: at most one more graph is made."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = FromTensors(net)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    cases = [sparse(n=n, seed=n) for n in (30, 17, 60, 80)]
    for more, x in enumerate(cases):
        x.spatial_shape, x.batch_size = [size + 3 * more for size in SHAPES[3]], 2 + more
        for out, wanted in zip(compiled(*arguments(x)), model(*arguments(x)), strict=True):
            assert torch.equal(out, wanted)
    assert len(graphs) <= 2
    targets = [node.target for node in graphs[-1].graph.nodes if node.op == "call_function"]
    assert targets.count(ops.subm_conv3d) == 2 and targets.count(ops.output_coords) == 2


@pytest.mark.slow
def test_inductor(net: Any) -> None:
    compiled = torch.compile(net, fullgraph=True)
    for x in (sparse(), sparse(n=50, seed=1)):
        for out, wanted in zip(compiled(x), net(x), strict=True):
            torch.testing.assert_close(out, wanted)


def test_export(net: Any) -> None:
    rows = torch.export.Dim("rows")
    x = sparse()
    exported = torch.export.export(net, (x,), dynamic_shapes=(([{0: rows}, {0: rows}]),))
    targets = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    assert {ops.subm_conv3d, ops.output_coords, ops.sparse_conv3d, ops.sparse_pool3d, ops.to_dense} <= targets
    assert torch.ops.aten.batch_norm.default in targets
    check(exported.module(), net, sparse(n=77, seed=2))
    check(exported.module(), net, sparse(n=0))
    with pytest.raises(ValueError, match="99, 99, 99"):
        exported.module()(spconv.SparseConvTensor(x.features, x.indices, [99, 99, 99], 2))


def test_sparse_tensors_cross_the_border_of_a_compiled_function() -> None:
    layer = whole(spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="d"))
    inverse = whole(spconv.SparseInverseConv3d(4, 4, 3, "d"))
    x = sparse()
    made = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    wanted = layer(x)
    assert torch.equal(made.features, wanted.features) and torch.equal(made.indices, wanted.indices)
    assert made.spatial_shape == wanted.spatial_shape and made.indice_dict["d"].ksize == [3, 3, 3]
    assert torch.equal(inverse(made).features, inverse(wanted).features)


def test_fewer_axes() -> None:
    ndim = 2

    def layer(kind: str, *args: Any) -> Any:
        return getattr(spconv, f"{kind}{ndim}d")(*args)

    net = whole(
        spconv.SparseSequential(
            layer("SubMConv", 4, 4, 3), layer("SparseConv", 4, 4, 3, 2, 1), layer("SparseAvgPool", 2), spconv.ToDense()
        )
    )
    x = sparse(ndim)
    assert torch.equal(torch.compile(net, fullgraph=True, backend="aot_eager")(x), net(x))


def test_sums_and_tables_in_traces() -> None:
    down, other = (whole(spconv.SparseConv3d(4, 4, 3, 2, 1), seed) for seed in (1, 2))

    def run(x: Any, y: Any) -> Any:
        union = functional.sparse_add(x, y)
        return (down(union) + other(union)).dense()

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    x, y = sparse(seed=1), sparse(seed=2)
    assert torch.equal(compiled(x, y), run(x, y))


def test_sum_of_different_voxels_in_a_trace() -> None:
    compiled = torch.compile(lambda x, y: (x + y).features, fullgraph=True, backend="aot_eager")
    x = sparse(seed=1)
    same = spconv.SparseConvTensor(x.features, x.indices.clone(), x.spatial_shape, 2)
    assert torch.equal(compiled(x, same), 2 * x.features)
    with pytest.raises(RuntimeError, match="different indices"):
        compiled(x, sparse(seed=2))


def test_autocast_in_a_trace() -> None:
    layer, x = whole(spconv.SubMConv3d(4, 4, 3)), sparse()

    def run(x: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = layer(x).features
        return out

    out = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    assert out.dtype == torch.bfloat16 and torch.equal(out, run(x))


def test_target_is_read_when_a_graph_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[Any] = []
    run_it = api.convolve

    def seen(kernel: Any, *rest: Any, **more: Any) -> Any:
        kernels.append(kernel)
        return run_it(kernels[0], *rest, **more)

    monkeypatch.setattr(api, "convolve", seen)
    layer, x = whole(spconv.SubMConv3d(4, 4, 3)), sparse()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for run in (layer, layer, compiled):
        run(x)
        with spconv.use_target("gfx950-sim"):
            run(x)
    assert [kernel.options.target == "gfx950-sim" for kernel in kernels] == [False, True] * 3


def test_training_graphs_are_refused() -> None:
    """A joint graph would need the backward pass: it is asked for when the graph is made."""
    layer, x = spconv.SubMConv3d(4, 4, 3), sparse()
    with torch.enable_grad(), pytest.raises((SpconvError, RuntimeError), match="has no backward pass"):
        torch.compile(layer, fullgraph=True, backend="aot_eager")(x).features.sum().backward()


CALLS: dict[str, Any] = {
    "subm_conv3d": lambda x, y, w: (x.features, x.indices, w, None, ONES, SHAPES[3], 2, "relu"),
    "union_coords": lambda x, y, w: (x.indices, y, SHAPES[3], 2),
    "int32_coords": lambda x, y, w: (x.indices.long(),),
    "output_coords": lambda x, y, w: (x.indices, [3, 3, 3], TWOS, ONES, ONES, ZEROS, False, SHAPES[3], 2),
    "sparse_conv3d": lambda x, y, w: (x.features, x.indices, y, w, torch.ones(4), TWOS, ONES, ONES, False, "none"),
    "sparse_pool3d": lambda x, y, w: (x.features, x.indices, y, [3, 3, 3], TWOS, ONES, ONES, "max"),
    "to_dense": lambda x, y, w: (x.features, x.indices, SHAPES[3], 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_ops_are_what_their_schemas_say(name: str) -> None:
    """No hidden mutation or aliasing, fakes agree with results, dynamic sizes trace."""
    x = sparse()
    y = ops.output_coords(x.indices, [3, 3, 3], TWOS, ONES, ONES, ZEROS, False, SHAPES[3], 2)
    operands = CALLS[name](x, y, whole(spconv.SubMConv3d(4, 4, 3)).weight.detach())
    torch.library.opcheck(getattr(ops, name), operands)


def test_maps_are_shared_through_the_ops(monkeypatch: pytest.MonkeyPatch, net: Any) -> None:
    """One map per coordinate set and geometry: eager, through the dispatcher, in a compiled graph, and its inverse."""
    built = []
    original = maps.make_map
    monkeypatch.setattr(maps, "make_map", lambda *args: built.append(args) or original(*args))
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = sparse(seed=9)
    for run in (net, compiled, net):
        run(x)
    with torch.enable_grad():
        net(x)
    # The convolution's, and the pool's, which has the same geometry: one.
    assert len(built) == 1
    copied = spconv.SparseConvTensor(x.features, x.indices.clone(), x.spatial_shape, 2)
    net(copied)
    assert len(built) == 2


def test_nothing_is_kept_of_tensors_that_are_gone(net: Any) -> None:
    """Also of an encoder and decoder, whose two coordinate tensors belong to one map."""
    gc.collect()
    before = len(maps._states)
    for seed in range(5):
        net(sparse(seed=100 + seed))
    assert len(maps._states) == before
    x = sparse(seed=200)
    net(x)
    assert len(maps._states) > before
    sc.clear_caches()
    assert len(maps._states) == 0


def test_several_output_sets_of_one_tensor() -> None:
    """The same geometry onto all that is reached, onto rows chosen from it, and onto a set that is written to."""
    x, layer = sparse(seed=6), whole(spconv.SparseConv3d(4, 4, 3, 2, 1))
    made = layer(x)
    chosen = made.indices[::3].contiguous()

    def onto(rows: Tensor) -> Tensor:
        operands = (x.features, x.indices, rows, layer.weight, layer.bias)
        out: Tensor = ops.sparse_conv3d(*operands, TWOS, ONES, ONES, False, "none")
        return out

    for _ in range(2):
        assert torch.equal(onto(chosen), made.features[::3]) and torch.equal(onto(made.indices), made.features)
    chosen.copy_(made.indices[: len(chosen)])
    assert torch.equal(onto(chosen), made.features[: len(chosen)])


def test_a_changed_output_is_made_again() -> None:
    x = sparse(seed=5)
    geometry = ([3, 3, 3], TWOS, ONES, ONES, ZEROS, False, SHAPES[3], 2)
    first = ops.output_coords(x.indices, *geometry)
    wanted = first.clone()
    first.add_(1)
    assert torch.equal(ops.output_coords(x.indices, *geometry), wanted)
