"""What a compilation depends on."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

from spconv_compiler.epilogue import Epilogue
from spconv_compiler.errors import InputError
from spconv_compiler.schedules.mappers import check_mapper_name

DTYPES = ("bf16", "f16", "f32")
MAX_CHANNELS = 2**14
_INT32_MAX = 2**31 - 1
_NO_EFFECT = {"affects_code": False}


def is_bool(value: Any) -> bool:
    """Whether a value is a truth value, of Python, numpy or torch, all of which pass for 0 or 1 somewhere."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).rpartition(".")[2] == "bool"


def _index(value: Any) -> int:
    """As operator.index; TypeError for a truth value too, which is no number of anything."""
    if type(value) is int:
        return value
    if is_bool(value):
        raise TypeError
    return operator.index(value)


def triple(value: Any, what: str) -> tuple[int, int, int]:
    """(z, y, x) from one number or three.

    Raises:
        InputError: anything else.
    """
    try:
        numbers = (_index(value),) * 3 if not hasattr(value, "__len__") else tuple(map(_index, value))
    except TypeError:
        numbers = ()
    if len(numbers) != 3:
        raise InputError(f"{what} is {value!r}; accepted: one whole number, or three (z, y, x)")
    return numbers


def whole(value: Any, what: str) -> int:
    """A whole number.

    Raises:
        InputError: anything else.
    """
    try:
        return _index(value)
    except TypeError:
        raise InputError(f"{what} is {value!r}; accepted: a whole number") from None


def check_key_width(bits: int) -> None:
    """Raises InputError unless packed coordinates have so many bits."""
    if bits not in (32, 64):
        raise InputError(f"key_width is {bits}; accepted: 32 or 64")


def check_features(options: Any) -> None:
    """Raises InputError unless channels, dtypes and epilogue of CompileOptions or SparseOptions are there."""
    c_in, c_out = options.c_in, options.c_out
    if min(c_in, c_out) < 1 or max(c_in, c_out) > MAX_CHANNELS:
        raise InputError(f"channels are {c_in} → {c_out}; accepted: 1 to {MAX_CHANNELS} each")
    for name in ("dtype", "out_dtype"):
        if getattr(options, name) not in DTYPES:
            raise InputError(f"{name} is {getattr(options, name)!r}; accepted: {', '.join(DTYPES)}")
    _ = options.epilogue


def parts_that_affect_code(options: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not marked as without effect."""
    fields = dataclasses.fields(options)
    return {field.name: getattr(options, field.name) for field in fields if field.metadata.get("affects_code", True)}


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """One convolution and how to compile it. Every field enters the cache key unless marked otherwise.

    Attributes:
        kernel_size, dilation: (z, y, x).
        c_in, c_out: channels.
        key_width: bits of a packed coordinate, 32 or 64.
        dtype: of features and weights; out_dtype: of the result. Sums are f32 always.
        bias: whether a bias [c_out] f32 is added; residual: whether rows of out_dtype are added.
        activation: one of epilogue.ACTIVATIONS, applied last; negative_slope: of leaky_relu, else 0.
        target: a name that targets.get_target accepts, already resolved.
        schedule: name of a gemm schedule, or "auto".
        mapper: of a GPU: "dense_grid", "z_delta", or "auto", upon which the driver chooses for each set of coordinates.
        verify: check IR and levels between passes.
        dump_dir: folder for dumps, or "".
        print_after: pass name or "all": print the IR to stderr after it.
    """

    kernel_size: tuple[int, int, int]
    c_in: int
    c_out: int
    key_width: int = 32
    dtype: str = "f32"
    out_dtype: str = "f32"
    dilation: tuple[int, int, int] = (1, 1, 1)
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
        if len(self.kernel_size) != 3 or any(size < 1 or size % 2 == 0 for size in self.kernel_size):
            raise InputError(f"kernel_size is {self.kernel_size}; accepted: three odd sizes (z, y, x)")
        if len(self.dilation) != 3 or min(self.dilation) < 1:
            raise InputError(f"dilation is {self.dilation}; accepted: three numbers of at least 1 (z, y, x)")
        for name in ("c_in", "c_out", "key_width"):
            whole(getattr(self, name), name)
        for name in ("kernel_size", "dilation"):
            triple(getattr(self, name), name)
        reach = max(step * (size - 1) for step, size in zip(self.dilation, self.kernel_size, strict=True))
        if reach > _INT32_MAX:
            raise InputError(
                f"kernel {self.kernel_size} with dilation {self.dilation} reaches over {reach} cells; accepted: "
                f"at most {_INT32_MAX}"
            )
        check_key_width(self.key_width)
        check_features(self)
        check_mapper_name(self.mapper)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel_size)

    @property
    def epilogue(self) -> Epilogue:
        """What is applied to a sum; InputError where there is no such activation."""
        return Epilogue(self.activation, self.negative_slope)

    @property
    def name(self) -> str:
        """A short name for folders and listings, such as k3x3x3_c64x128_bf16-f32_i32."""
        kernel = "x".join(map(str, self.kernel_size))
        return f"k{kernel}_c{self.c_in}x{self.c_out}_{self.dtype}-{self.out_dtype}_i{self.key_width}"

    def key_parts(self) -> dict[str, Any]:
        """The fields that affect code."""
        return parts_that_affect_code(self)
