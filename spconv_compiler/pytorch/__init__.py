"""Drop-in modules with spconv.pytorch's names: `import spconv_compiler.pytorch as spconv`.

Constructors, state_dict keys and weights are spconv 2.3's. What behaves differently, and why, is in
docs/from_spconv.md. Modules run on the CPU, or on the target that `use_target` or SPCONV_TARGET names.
"""

from __future__ import annotations

from spconv_compiler.pytorch import constants, convert, functional, layers, modules, ops, pool, tables, tracing, utils
from spconv_compiler.pytorch.algo import ConvAlgo
from spconv_compiler.pytorch.conv import SparseConvolution
from spconv_compiler.pytorch.core import SparseConvTensor
from spconv_compiler.pytorch.keys import IndiceData
from spconv_compiler.pytorch.layers import (
    SparseConv1d,
    SparseConv2d,
    SparseConv3d,
    SparseConvTranspose1d,
    SparseConvTranspose2d,
    SparseConvTranspose3d,
    SparseInverseConv1d,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SubMConv1d,
    SubMConv2d,
    SubMConv3d,
)
from spconv_compiler.pytorch.modules import (
    Identity,
    RemoveGrid,
    SparseBatchNorm,
    SparseIdentity,
    SparseModule,
    SparseReLU,
    SparseSequential,
    SparseSyncBatchNorm,
    ToDense,
    assign_name_for_sparse_modules,
)
from spconv_compiler.pytorch.pool import (
    SparseAvgPool,
    SparseAvgPool1d,
    SparseAvgPool2d,
    SparseAvgPool3d,
    SparseGlobalAvgPool,
    SparseGlobalMaxPool,
    SparseMaxPool,
    SparseMaxPool1d,
    SparseMaxPool2d,
    SparseMaxPool3d,
)
from spconv_compiler.pytorch.tables import AddTable, AddTableMisaligned, ConcatTable, JoinTable
from spconv_compiler.pytorch.target import current_target, use_target

# Names that frameworks import, and register; with four spatial axes constructors raise.
SubMConv4d, SparseConv4d, SparseConvTranspose4d = layers.SubMConv4d, layers.SparseConv4d, layers.SparseConvTranspose4d
SparseInverseConv4d, SparseMaxPool4d = layers.SparseInverseConv4d, pool.SparseMaxPool4d

tracing.install()

# The version of spconv whose interface this is: programs look at it.
__version__ = "2.3.8"

__all__ = [
    "AddTable",
    "AddTableMisaligned",
    "ConcatTable",
    "ConvAlgo",
    "Identity",
    "IndiceData",
    "JoinTable",
    "RemoveGrid",
    "SparseAvgPool",
    "SparseAvgPool1d",
    "SparseAvgPool2d",
    "SparseAvgPool3d",
    "SparseBatchNorm",
    "SparseConv1d",
    "SparseConv2d",
    "SparseConv3d",
    "SparseConvTensor",
    "SparseConvTranspose1d",
    "SparseConvTranspose2d",
    "SparseConvTranspose3d",
    "SparseConvolution",
    "SparseGlobalAvgPool",
    "SparseGlobalMaxPool",
    "SparseIdentity",
    "SparseInverseConv1d",
    "SparseInverseConv2d",
    "SparseInverseConv3d",
    "SparseMaxPool",
    "SparseMaxPool1d",
    "SparseMaxPool2d",
    "SparseMaxPool3d",
    "SparseModule",
    "SparseReLU",
    "SparseSequential",
    "SparseSyncBatchNorm",
    "SubMConv1d",
    "SubMConv2d",
    "SubMConv3d",
    "ToDense",
    "assign_name_for_sparse_modules",
    "constants",
    "convert",
    "current_target",
    "functional",
    "modules",
    "ops",
    "tables",
    "use_target",
    "utils",
]
