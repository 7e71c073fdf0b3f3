"""The importer: what a network becomes at level spconv, whose lines it names, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

import spconv_compiler
from spconv_compiler.errors import InputError

sc: Any = spconv_compiler
torch = pytest.importorskip("torch")

from network_cases import SHAPE, RandomNet, voxels, with_integers  # noqa: E402
from torch import nn  # noqa: E402

import spconv_compiler.pytorch as spconv  # noqa: E402
from spconv_compiler.nets.backbones import centerpoint  # noqa: E402
from spconv_compiler.network.build import build_plan  # noqa: E402
from spconv_compiler.network.export import export  # noqa: E402
from spconv_compiler.network.memory import assign_slots, last_uses, peak_bytes  # noqa: E402
from spconv_compiler.network.passes import optimize  # noqa: E402
from spconv_compiler.network.table import Layout  # noqa: E402


def imported(forward: Any, *modules: nn.Module, channels: int = 3) -> Any:
    """The graph of a model whose forward is `forward(model, SparseConvTensor)`, its modules m0, m1, …"""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number, module in enumerate(modules):
                self.add_module(f"m{number}", module)

        def forward(self, features: Any, indices: Any) -> Any:
            return forward(self, spconv.SparseConvTensor(features, indices, SHAPE, 2))

    with torch.no_grad():
        return sc.import_graph(export(Model().eval(), voxels(20, 0, channels)))


def test_the_backbone_of_centerpoint() -> None:
    model = centerpoint(spconv, 5, (41, 160, 160)).eval()
    graph = sc.import_graph(export(model, voxels(50, 0, 5)))
    text = str(graph)
    assert text.count('"spconv.subm_conv3d"') == 17
    assert text.count('"spconv.sparse_conv3d"') == 4
    assert text.count('"spconv.affine"') == 21
    eager = build_plan(graph)
    optimize(graph.module, graph.context)
    plan = build_plan(graph)
    # One step a convolution; eight maps, since residual blocks share theirs with their stage.
    assert [step.operation for step in plan.steps].count("subm_conv") == 17
    assert len(plan.steps) == 21
    assert len(plan.maps) == 8
    assert sum(step.options["residual"] for step in plan.steps) == 8
    assert all(step.options["activation"] == "relu" for step in plan.steps)
    # Voxels of CenterPoint's stages on nuScenes.
    rows = [79_700, 69_300, 29_700, 10_300, 8_000]
    sizes = [rows[value.level] * value.row_bytes for value in plan.values]
    shared = Layout(plan, assign_slots(plan, sizes))(torch.tensor(rows).numpy())[1]
    # Two arrays, of the second stage; op by op there are three, and eager calls hold a fourth (test_network.py).
    assert shared <= 2 * 69_300 * 32 * 4 + 128
    assert peak_bytes(eager, [rows[value.level] * value.row_bytes for value in eager.values]) == 3 * 69_300 * 32 * 4


@pytest.mark.parametrize("seed", range(8))
def test_values_that_share_memory_are_never_alive_together(seed: int) -> None:
    with torch.no_grad():
        graph = sc.import_graph(export(with_integers(RandomNet(seed), seed), voxels(30, seed)))
    optimize(graph.module, graph.context)
    plan = build_plan(graph)
    slots = assign_slots(plan, [(7 * number) % 5 * 64 for number in range(len(plan.values))])
    last, made = last_uses(plan), {step.out: place for place, step in enumerate(plan.steps)}
    results = {number for kind, number in plan.results if kind == "value"}
    end = {value: len(plan.steps) if value in results else last.get(value, made[value]) for value in made}
    for members in slots.members:
        for one, other in zip(members, members[1:], strict=False):
            # The last step to read a value may write over it where it reads each element just before.
            step = plan.steps[made[other]]
            inherits = (end[one] == made[other] and dict(step.reads).get("residual") == one) or step.map is None
            assert end[one] < made[other] or (inherits and end[one] == made[other])
    placed = {value for members in slots.members for value in members}
    assert placed >= made.keys() - results


def test_ops_carry_the_line_and_module_of_the_user() -> None:
    graph = imported(lambda model, x: model.m0(x).features, spconv.SubMConv3d(3, 4, 3))
    (line,) = re.findall(r'spconv.subm_conv3d.*"m0"\(.*\)|"m0"\("([^"]*)":(\d+)', graph.asm())[:1] or [("", "")]
    assert "test_network_import.py" in graph.asm()
    assert '"m0"(' in graph.asm(), line
    assert "site-packages" not in graph.asm()


def test_what_surrounds_the_sparse_part_stays_in_torch() -> None:
    def forward(model: Any, x: Any) -> Any:
        scaled = x.replace_feature(torch.log1p(x.features.abs()))
        return torch.softmax(model.m0(scaled).features, dim=1)

    graph = imported(forward, spconv.SubMConv3d(3, 4, 3))
    assert "log1p" in graph.head.module.code
    assert "softmax" in graph.tail.module.code
    assert str(graph).count("spconv.") < 12


def test_unsupported_ops_between_sparse_layers_are_named_with_their_line() -> None:
    def forward(model: Any, x: Any) -> Any:
        x = model.m0(x)
        x = x.replace_feature(torch.tanh(x.features))  # the culprit
        return model.m1(x).features

    line = forward.__code__.co_firstlineno + 2
    message = rf"node tanh \(aten.tanh.default\): .* subm_conv3d_1 needs its result; at .*test_network_import.py:{line}"
    with pytest.raises(InputError, match=message + r".*; accepted: .*batch_norm.*relu.*subm_conv3d"):
        imported(forward, spconv.SubMConv3d(3, 4, 3), spconv.SubMConv3d(4, 4, 3))


def test_rows_of_different_voxels_are_not_added() -> None:
    def forward(model: Any, x: Any) -> Any:
        fine, coarse = model.m0(x), model.m1(x)
        torch._check(fine.features.shape[0] == coarse.features.shape[0])
        return model.m2(fine.replace_feature(fine.features + coarse.features)).features

    layers = (spconv.SubMConv3d(3, 4, 3), spconv.SparseConv3d(3, 4, 3, 1, 1), spconv.SubMConv3d(4, 4, 3))
    with pytest.raises(InputError, match=r"rows of two coordinate sets, .*output_coords.*; at .*test_network_import"):
        imported(forward, *layers)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda model, x: model.m0(x).features * x.features, r"features is computed when the model runs, and subm"),
        (
            lambda model, x: nn.functional.gelu(model.m0(x).features, approximate="tanh"),
            r"approximate is 'tanh'; .*accepted: 'none'",
        ),
        (lambda model, x: model.m0(x).features @ (x.features.t() @ x.features), r"is computed when the model runs"),
    ],
)
def test_arguments_that_are_not_accepted(forward: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(lambda model, x: model.m0(x.replace_feature(forward(model, x))).features, spconv.SubMConv3d(3, 3, 3))


def test_models_and_examples_that_are_not_accepted() -> None:
    model = spconv.SparseSequential(spconv.SubMConv3d(3, 4, 3))
    given = spconv.SparseConvTensor(*voxels(20, 0), SHAPE, 2)
    with pytest.raises(InputError, match=r"model is in training mode; accepted: model.eval\(\)"):
        sc.compile(model, given, target="cpu")
    theirs = type("SubMConv3d", (torch.nn.Module,), {"__module__": "spconv.pytorch.conv"})
    with pytest.raises(InputError, match=r"a SubMConv3d of spconv's own; accepted: layers of spconv_compiler\.pytorch"):
        sc.compile(torch.nn.Sequential(theirs()).eval(), given, target="cpu")
    with pytest.raises(InputError, match=r"model is a str; accepted: a torch.nn.Module"):
        sc.compile("model", given, target="cpu")
    with pytest.raises(InputError, match=r"no coordinates among float32 \[20, 3\]; accepted: a tensor int32 \[N, 4\]"):
        sc.compile(model.eval(), voxels(20, 0)[0], target="cpu")
    one = spconv.SparseConvTensor(*voxels(1, 0), SHAPE, 2)
    with pytest.raises(InputError, match="example has 1 voxels; accepted: at least 2"):
        sc.compile(model.eval(), one, target="cpu")
    with pytest.raises(InputError, match="program is a str; accepted: what torch.export.export returns"):
        sc.import_graph("program")


def test_calls_that_are_not_accepted() -> None:
    model = spconv.SparseSequential(spconv.SubMConv3d(3, 4, 3, bias=False)).eval()
    net = sc.compile(model, spconv.SparseConvTensor(*voxels(20, 0), SHAPE, 2), target="cpu")
    features, indices = voxels(20, 1)

    def call(features: Any = features, indices: Any = indices, shape: Any = SHAPE, **more: Any) -> Any:
        return net(spconv.SparseConvTensor(features, indices, shape, 2), **more)

    assert call().features.shape == (20, 4)
    with pytest.raises(InputError, match="'input' is .*12, 12, 13.*; accepted, as in the example: .*12, 12, 12"):
        call(shape=[12, 12, 13])
    with pytest.raises(InputError, match=r"unexpected keyword argument 'more'; accepted: \(input\)"):
        call(more=1)
    with pytest.raises(InputError, match=r"4 channels of f32; accepted, as in the example: 3 of f32"):
        call(features=torch.zeros(20, 4))
    with pytest.raises(InputError, match=r"3 channels of bf16; accepted, as in the example: 3 of f32"):
        call(features=features.bfloat16())
    outside = indices.clone()
    outside[7, 3] = 12
    with pytest.raises(InputError, match=r"1 coords are out of range, the first in row 7"):
        call(indices=outside)
    repeated = indices.clone()
    repeated[3] = repeated[5]
    with pytest.raises(InputError, match=r"repeat an earlier row"):
        call(indices=repeated)
