"""Libraries that convolve on an NVIDIA GPU, each behind two calls: with the kernel map built, and with it kept."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from spconv_compiler.bench.gpu_layer import OursGraph
from spconv_compiler.errors import InputError


class Contender(Protocol):
    """A submanifold convolution on given tensors."""

    name: str
    kinds: tuple[str, ...]
    """Which of its calls there are: "built", "cached"."""

    def prepare(self, calls: int) -> None:
        """Makes what that many calls of `built` use up; not timed."""

    def built(self) -> Any:
        """Convolves; nothing that depends on the coordinates is kept from earlier calls."""

    def cached(self) -> Any:
        """Convolves with the map of an earlier call."""

    def facts(self) -> dict[str, Any]:
        """What else there is to say of the last call."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library with spconv's interface: the module that has it, and what to install."""

    module: str
    requirement: str


PEERS = {
    "spconv": Peer("spconv.pytorch", "spconv-cu126==2.3.8"),
    "spconv-triton": Peer("spconv_triton.pytorch", "spconv-triton==1.0.0"),
}


def open_contenders(
    peers: Sequence[str], coords: Any, shape: tuple[int, ...], features: Any, weight: Any, layer: Path
) -> list[Contender]:
    """Ours, call by call and as a graph, then the peers.

    Args:
        coords: int32 [N, 4]; features: [N, C_in]; weight: [C_out, 3, 3, 3, C_in], all on the GPU.
        shape: (z, y, x). layer: the folder of gpu_layer.export_layer.

    Raises:
        InputError: a library cannot be imported, or there is no such folder.
    """
    ours: list[Contender] = [Ours(coords, shape, features, weight), OursGraph(layer, coords, features, weight)]
    return ours + [SpconvLike(name, coords, shape, features, weight) for name in peers]


class Ours:
    """This package, on torch's current stream."""

    name = "spconv_compiler"
    kinds: tuple[str, ...] = ("built", "cached")

    def __init__(self, coords: Any, shape: tuple[int, ...], features: Any, weight: Any) -> None:
        self._coords, self._features, self._weight = coords, features, weight
        self._limits: dict[str, Any] = {"spatial_shape": shape, "batch_size": int(coords[:, 0].max()) + 1}
        self._unknown: list[Any] = []

    def prepare(self, calls: int) -> None:
        self._unknown = [self._coords.clone() for _ in range(calls)]

    def built(self) -> Any:
        # A map is kept as long as its coordinates live: here, as long as the call.
        return self._run(self._unknown.pop())

    def cached(self) -> Any:
        return self._run(self._coords)

    def facts(self) -> dict[str, Any]:
        return {}

    def _run(self, coords: Any) -> Any:
        from spconv_compiler.api import subm_conv3d

        return subm_conv3d(coords, self._features, self._weight, target="auto", **self._limits)


class SpconvLike:
    """spconv, or a library that is used like it."""

    kinds: tuple[str, ...] = ("built", "cached")

    def __init__(
        self, name: str, coords: Any, shape: tuple[int, ...], features: Any, weight: Any
    ) -> None:
        peer = PEERS[name]
        try:
            self._spconv: Any = importlib.import_module(peer.module)
        except Exception as error:  # its import runs code that fails in many ways beside another torch
            raise InputError(
                f"{name} cannot be imported ({type(error).__name__}: {error}); install {peer.requirement}"
            ) from None
        torch = importlib.import_module("torch")
        self.name, self._torch, self._shape = name, torch, list(shape)
        self._coords, self._features = coords, features
        self._batches = int(coords[:, 0].max()) + 1
        c_out, *kernel, c_in = weight.shape
        self._conv = self._spconv.SubMConv3d(c_in, c_out, kernel, bias=False, indice_key="shared")
        self._conv = self._conv.cuda().to(features.dtype).eval()
        with torch.no_grad():
            self._conv.weight.copy_(weight)
        self._maps: dict[str, Any] = {}

    def prepare(self, calls: int) -> None:
        """Nothing: a map is kept only where it is passed on."""

    def built(self) -> Any:
        return self._run({}).features

    def cached(self) -> Any:
        out = self._run(self._maps)
        self._maps = out.indice_dict
        return out.features

    def facts(self) -> dict[str, Any]:
        return {}

    def _run(self, maps: dict[str, Any]) -> Any:
        with self._torch.no_grad():
            sparse = self._spconv.SparseConvTensor(self._features, self._coords, self._shape, self._batches)
            sparse.indice_dict = maps
            return self._conv(sparse)
