"""What the compilation of an op between two coordinate sets depends on."""

from __future__ import annotations

import dataclasses
from typing import Any

from spconv_compiler.epilogue import Epilogue
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.options import check_features, check_key_width, parts_that_affect_code

OPERATIONS = ("outputs", "conv", "max_pool", "avg_pool", "pointwise", "affine", "concat")
# Those of one array of rows, without coordinates: their geometry says nothing.
ON_ROWS = ("pointwise", "affine", "concat")
_NO_EFFECT = {"affects_code": False}


@dataclasses.dataclass(frozen=True)
class SparseOptions:
    """One op and how to compile it. Every field enters the cache key unless marked otherwise.

    Attributes:
        operation: "outputs" makes the coordinates that a geometry reaches; convolutions and pools take both sets as
            given; ON_ROWS have none: "pointwise" is the epilogue alone, "affine" a scale and shift per channel, and
            "concat" puts c_in channels beside c_out − c_in others.
        geometry: which voxels meet.
        key_width: bits of a packed coordinate, 32 or 64.
        c_in, c_out: channels, dtype: of features and weights; out_dtype: of the result; "outputs" has none of these.
        bias: whether a bias [c_out] f32 is added; residual: whether rows of out_dtype are added.
        activation: one of epilogue.ACTIVATIONS, applied last; negative_slope: of leaky_relu, else 0.
        target: a name that targets.get_target accepts, already resolved.
        schedule: name of a gemm schedule, or "auto".
        mapper: how a GPU finds coarse voxels: "coarse_grid", "coarse_keys" or, in a set that ascends without repeated
            rows, "coarse_ascending"; and how it makes outputs: "marked_cells" or "sorted_candidates". "auto" is the
            first of each.
        verify, dump_dir, print_after: as in CompileOptions.
    """

    operation: str
    geometry: ConvGeometry
    key_width: int = 32
    c_in: int = 0
    c_out: int = 0
    dtype: str = "f32"
    out_dtype: str = "f32"
    bias: bool = False
    activation: str = "none"
    negative_slope: float = 0.0
    residual: bool = False
    target: str = "cpu"
    schedule: str = "auto"
    mapper: str = "auto"
    verify: bool = dataclasses.field(default=True, metadata=_NO_EFFECT)
    dump_dir: str = dataclasses.field(default="", metadata=_NO_EFFECT)
    print_after: str = dataclasses.field(default="", metadata=_NO_EFFECT)

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise InputError(f"operation is {self.operation!r}; accepted: {', '.join(OPERATIONS)}")
        check_key_width(self.key_width)
        if self.operation != "outputs":
            check_features(self)

    @property
    def epilogue(self) -> Epilogue:
        """What is applied to a sum; InputError where there is no such activation."""
        return Epilogue(self.activation, self.negative_slope)

    @property
    def name(self) -> str:
        """A short name for folders and listings, such as conv_k3x3x3_s2x2x2_c64x128_bf16-f32_i32."""
        kernel, stride = ("x".join(map(str, axes)) for axes in (self.geometry.kernel_size, self.geometry.stride))
        direction = "_transposed" if self.geometry.transposed else ""
        channels = f"_c{self.c_in}x{self.c_out}_{self.dtype}-{self.out_dtype}" if self.c_in else ""
        return f"{self.operation}{direction}_k{kernel}_s{stride}{channels}_i{self.key_width}"

    def key_parts(self) -> dict[str, Any]:
        """The fields that affect code."""
        return parts_that_affect_code(self)
