"""One submanifold convolution as a compiled network: its map and its launch, replayed as one graph in every call."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spconv_compiler.errors import InputError

NAME = "spconv_compiler graph"
# Voxels of the example that the layer is exported with: any will do.
_EXAMPLE = 64


def export_layer(folder: Path, channels: int, dtype: str, coords: Any, shape: Sequence[int]) -> None:
    """Writes the layer of a case with its kernels, on a machine with the compiler.

    Args:
        coords: int32 [N, 4], NumPy. shape: (z, y, x).

    Raises:
        InputError: the folder cannot be written to.
    """
    import torch

    import spconv_compiler.pytorch as layers
    from spconv_compiler.network.saved import export_network

    # Lists, since a call of a network has to have the values that it was exported with.
    size, batches = [int(extent) for extent in shape], int(coords[:, 0].max()) + 1

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = layers.SubMConv3d(channels, channels, 3, bias=False)

        def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.conv(layers.SparseConvTensor(features, indices, size, batches)).features
            return made

    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    model = Layer().to(kind).eval()
    few = torch.from_numpy(coords[:_EXAMPLE].copy())
    export_network(model, (torch.zeros(len(few), channels, dtype=kind), few), folder, target="sm_90")


class OursGraph:
    """The layer, loaded; it keeps no map, so that `cached` is nothing that it has."""

    name = NAME
    kinds: tuple[str, ...] = ("built",)

    def __init__(self, folder: Path, coords: Any, features: Any, weight: Any) -> None:
        from spconv_compiler.network.saved import load_network

        if not folder.is_dir():
            raise InputError(f"{folder} does not exist; spconv-bench gpu --export makes it")
        self._torch: Any = importlib.import_module("torch")
        self._net = load_network(folder, {"conv.weight": weight})
        self._coords, self._features = coords, features
        self._unknown: list[Any] = []

    def prepare(self, calls: int) -> None:
        self._unknown = [self._coords.clone() for _ in range(calls)]

    def built(self) -> Any:
        with self._torch.no_grad():
            return self._net(self._features, self._unknown.pop())

    def cached(self) -> Any:
        raise InputError(f"{NAME} builds its map in every call; accepted: {', '.join(self.kinds)}")

    def facts(self) -> dict[str, Any]:
        """How many graphs the last call launched, and why there was none."""
        assert self._net.replay is not None
        return {"graphs": self._net.replay.graphs, "not_replayed": self._net.replay.reason}
