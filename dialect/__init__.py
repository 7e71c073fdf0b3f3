"""The `spconv` dialect: IRDL text for the shapes of types and ops, one Python class per op for the rest.

`register(context)` loads everything once per context; the op classes are re-exported here.
"""

from __future__ import annotations

if __name__ != "spconv_compiler.dialect":
    raise ImportError(f"import this package as spconv_compiler.dialect, not as {__name__}")

from spconv_compiler.dialect.conv import SubmConv3dOp
from spconv_compiler.dialect.copy import TileCopyGroupOp, TileCopyOp, TileCopyWaitOp
from spconv_compiler.dialect.cross import CrossCompactOp, CrossMapOp, PoolOp
from spconv_compiler.dialect.frame import PlaceCoordsOp
from spconv_compiler.dialect.levels import LevelMapsOp
from spconv_compiler.dialect.loader import register
from spconv_compiler.dialect.network import (
    AffineOp,
    ConcatOp,
    NormScaleOp,
    NormShiftOp,
    ParameterOp,
    PointwiseOp,
    ScaleBiasOp,
    ScaleWeightOp,
)
from spconv_compiler.dialect.plan import AllocOp, ArgumentOp, LaunchOp, SymbolOp
from spconv_compiler.dialect.sparse import OutputCoordsOp, SparseConv3dOp, SparsePool3dOp, UnionCoordsOp
from spconv_compiler.dialect.stages import ApplyEpilogueOp, CompactOp, FillOp, GemmOp, MapOp, PackWeightOp
from spconv_compiler.dialect.tile import (
    TileAddressOp,
    TileAtomicOp,
    TileBoundOp,
    TileFetchAddOp,
    TileLoadDeviceOp,
    TileLoadOp,
    TileMmaOp,
    TileStoreDeviceOp,
    TileStoreOp,
)

__all__ = [
    "AffineOp",
    "AllocOp",
    "ApplyEpilogueOp",
    "ArgumentOp",
    "CompactOp",
    "ConcatOp",
    "CrossCompactOp",
    "CrossMapOp",
    "FillOp",
    "GemmOp",
    "LaunchOp",
    "LevelMapsOp",
    "MapOp",
    "NormScaleOp",
    "NormShiftOp",
    "OutputCoordsOp",
    "PackWeightOp",
    "ParameterOp",
    "PlaceCoordsOp",
    "PointwiseOp",
    "PoolOp",
    "ScaleBiasOp",
    "ScaleWeightOp",
    "SparseConv3dOp",
    "SparsePool3dOp",
    "SubmConv3dOp",
    "SymbolOp",
    "TileAddressOp",
    "TileAtomicOp",
    "TileBoundOp",
    "TileCopyGroupOp",
    "TileCopyOp",
    "TileCopyWaitOp",
    "TileFetchAddOp",
    "TileLoadDeviceOp",
    "TileLoadOp",
    "TileMmaOp",
    "TileStoreDeviceOp",
    "TileStoreOp",
    "UnionCoordsOp",
    "register",
]
