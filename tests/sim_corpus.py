"""Kernels made by LLVM from small MLIR programs, each with what numpy says of its result.

They cover what compilers emit beyond the project's own kernels: DPP scans, LDS atomics, loads straight to LDS with
transposed reads, epilogues with exp and division, packed and wide atomics, fp8 and integer MFMA, f64 and f16
arithmetic, lane moves, scratch memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from sim_corpus_kernels import (
    DOUBLES,
    FLOATS,
    GELU,
    HALVES,
    HASH,
    INTEGER_DIVISION,
    MIXED_BYTES,
    RNG,
    SATURATED,
    SHORTS,
    SILU,
    bf16_of,
    elementwise,
    gelu_result,
    halves_result,
    hash_result,
    local_array,
    mixed_bytes_result,
    saturated_result,
    shorts_result,
)
from sim_corpus_waves import (
    FP8,
    INSERT,
    INT8,
    LANE_MOVES,
    LOOK_BACK,
    MAX_REDUCE,
    PACKED_ATOMICS,
    RADIX,
    SCRATCH,
    TRANSPOSED,
    dpp_scan,
    gram_result,
    insert_result,
    int8_result,
    lane_moves_result,
    look_back_result,
    packed_atomics_result,
    scratch_result,
    transposed_result,
)

from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.interpreter import Machine

_PIPELINE = (
    "gpu.module(canonicalize,cse,convert-scf-to-cf,convert-gpu-to-rocdl{chipset=gfx950 index-bitwidth=32 "
    "runtime=HIP use-bare-ptr-memref-call-conv=true},convert-vector-to-llvm,reconcile-unrealized-casts,"
    "canonicalize,cse),rocdl-attach-target{O=3 abi=600 chip=gfx950}"
)
_MODULE = """
module attributes {{gpu.container_module}} {{
  gpu.module @m {{
{globals}
    gpu.func @k(%in: !llvm.ptr<1> {{llvm.align = 16 : i64, llvm.noalias}},
                %out: !llvm.ptr<1> {{llvm.align = 16 : i64, llvm.noalias}}) kernel
        attributes {{known_block_size = array<i32: {block}, 1, 1>, llvm.passthrough = {passthrough}}} {{
      %tid_x = gpu.thread_id x
      %tid = arith.index_cast %tid_x : index to i32
      %group_x = gpu.block_id x
      %group = arith.index_cast %group_x : index to i32
      %lane = {lane}
      %size = arith.constant {block} : i32
      %start = arith.muli %group, %size : i32
      %i = arith.addi %start, %tid : i32
{body}
      gpu.return
    }}
  }}
}}
"""
_NO_HIDDEN = (
    '["amdgpu-no-implicitarg-ptr", "amdgpu-no-dispatch-ptr", "amdgpu-no-queue-ptr", "amdgpu-no-dispatch-id", '
    '"amdgpu-no-workgroup-id-y", "amdgpu-no-workgroup-id-z", "amdgpu-no-default-queue", "amdgpu-no-completion-action", '
    '"amdgpu-no-hostcall-ptr", "amdgpu-no-heap-ptr", "amdgpu-no-multigrid-sync-arg"]'
)


@dataclasses.dataclass(frozen=True)
class Sample:
    """A kernel k(in, out).

    Attributes:
        body: MLIR with %tid, %lane, %group, %in, %out; %i = tid + block * group where `each` is used.
        data: input array; result: an array like the output, filled with what it starts as; expected: of data.
        exact: whether the result must be equal in every bit; tolerance: relative, else.
        opcodes: some that the compiler must have used, or the sample tests nothing.
    """

    body: str
    data: np.ndarray[Any, Any]
    start: np.ndarray[Any, Any]
    expected: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    opcodes: tuple[str, ...]
    block: int = 64
    groups: int = 1
    tolerance: float = 0.0
    globals: str = ""


def compile_kernel(body: str, block: int, globals_: str = "") -> bytes:
    """The code object of a body."""
    from spconv_compiler.bindings import PassManager, gpu, ir
    from spconv_compiler.codegen_gpu import watch_stderr
    from spconv_compiler.context import make_context
    from spconv_compiler.linker import toolkit_dir
    from spconv_compiler.passes.gpu.upstream import to_binary

    text = _MODULE.format(
        body=body, block=block, passthrough=_NO_HIDDEN, globals=globals_, lane="arith.andi %tid, %c63 : i32"
    ).replace("      %lane =", "      %c63 = arith.constant 63 : i32\n      %lane =")
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        with watch_stderr() as log:
            pipeline = f"builtin.module({_PIPELINE},{to_binary('bin', str(toolkit_dir()))})"
            PassManager.parse(pipeline).run(module.operation)
        assert "error:" not in "".join(log), "".join(log)
        return bytes(gpu.ObjectAttr(module.body.operations[0].operation.attributes["objects"][0]).object)


@functools.cache
def kernel_of(name: str) -> Kernel:
    """The compiled kernel of a sample."""
    sample = SAMPLES[name]
    return CodeObject(compile_kernel(sample.body, sample.block, sample.globals)).kernels["k"]


def run(sample: Sample, kernel: Kernel, engine: Callable[[dict[str, Kernel]], Any] = Machine) -> np.ndarray[Any, Any]:
    """What the kernel leaves in its output, on the numpy engine or another one."""
    machine = engine({"k": kernel})
    source = machine.memory.allocate("in", sample.data.nbytes, writable=False)
    target = machine.memory.allocate("out", sample.start.nbytes)
    machine.memory.write_array(source, sample.data)
    machine.memory.write_array(target, sample.start)
    machine.launch("k", [sample.groups], sample.block, [source, target])
    found = machine.memory.copy_out(target.address, sample.start.nbytes).view(sample.start.dtype)
    return np.asarray(found.reshape(sample.start.shape))


_TILE = bf16_of(RNG.integers(-4, 5, 512).astype(np.float32))
_TABLE = np.full(256, -1, np.int64)
SAMPLES: dict[str, Sample] = {
    "silu": Sample(
        SILU,
        FLOATS,
        np.zeros(64, np.float32),
        lambda x: (x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32),
        ("v_exp_f32", "v_div_scale_f32", "v_div_fmas_f32", "v_div_fixup_f32"),
        tolerance=2e-6,
    ),
    "gelu": Sample(
        GELU, FLOATS, np.zeros(64, np.uint16), gelu_result, ("v_exp_f32", "v_cvt_pk_bf16_f32"), tolerance=1e-2
    ),
    "f64": Sample(
        DOUBLES,
        RNG.uniform(0.1, 9, 64),
        np.zeros(64),
        lambda x: np.maximum(np.sqrt(2.5 / x * x + 2.5), 2.5 / x) + x,
        ("v_fma_f64", "v_div_scale_f64", "v_rsq_f64"),
        tolerance=1e-15,
    ),
    "packed f16": Sample(
        HALVES, RNG.uniform(-3, 3, 128).astype(np.float16), np.zeros(128, np.float16), halves_result, ("v_pk_fma_f16",)
    ),
    "packed i16": Sample(
        SHORTS, RNG.integers(-999, 999, 128).astype(np.int16), np.zeros(128, np.int16), shorts_result, ("v_pk_max_i16",)
    ),
    "integer division": Sample(
        INTEGER_DIVISION,
        RNG.integers(0, 2**31, 64).astype(np.int32),
        np.zeros(64, np.int32),
        lambda x: x // (np.arange(64, dtype=np.int32) + 37) + x % (np.arange(64, dtype=np.int32) + 37),
        ("v_rcp_", "v_cvt_u32_f32"),
    ),
    "hash": Sample(
        HASH,
        RNG.integers(0, 2**63, 64).astype(np.uint64),
        np.zeros(64, np.uint64),
        hash_result,
        ("v_mad_u64_u32", "v_trunc_f32"),
    ),
    "scan": Sample(
        elementwise("i32", "i32", dpp_scan()),
        np.arange(64, dtype=np.int32) * 3 + 1,
        np.zeros(64, np.int32),
        np.cumsum,
        ("v_add_u32 DPP",),
    ),
    "row maximum": Sample(
        elementwise("f32", "f32", MAX_REDUCE),
        FLOATS,
        np.zeros(64, np.float32),
        lambda x: np.repeat((2 * x).reshape(4, 16).max(axis=1), 16),
        ("DPP",),
    ),
    "radix pass": Sample(
        RADIX,
        RNG.integers(0, 2**31, 256).astype(np.int32),
        np.zeros(256, np.int32),
        lambda x: x[np.argsort(x & 15, kind="stable")],
        ("ds_add_u32", "v_mbcnt_hi_u32_b32", "DPP"),
        block=256,
        globals=local_array("counts", "64 x i32"),
    ),
    "transposed tile": Sample(
        TRANSPOSED,
        _TILE,
        np.zeros(256, np.float32),
        transposed_result,
        ("global_load_lds_dwordx4", "ds_read_b64_tr_b16", "v_mfma_f32_16x16x32_bf16"),
        globals=local_array("tile", "512 x bf16"),
    ),
    "packed atomics": Sample(
        PACKED_ATOMICS,
        bf16_of(RNG.integers(-3, 4, 128).astype(np.float32)),
        np.zeros(8, np.uint16),
        packed_atomics_result,
        ("global_atomic_pk_add_bf16",),
    ),
    "hash insert": Sample(
        INSERT,
        RNG.choice(2**40, 64, replace=False).astype(np.int64),
        _TABLE,
        insert_result,
        ("global_atomic_cmpswap_x2",),
    ),
    "fp8 mfma": Sample(
        FP8,
        RNG.integers(-8, 9, 512).astype(np.float32),
        np.zeros(256, np.float32),
        gram_result,
        ("v_cvt_pk_fp8_f32", "v_mfma_f32_16x16x32_fp8_fp8"),
    ),
    "i8 mfma": Sample(
        INT8,
        RNG.integers(0, 256, 1024).astype(np.uint8),
        np.zeros(256, np.int32),
        int8_result,
        ("v_mfma_i32_16x16x64_i8",),
    ),
    "lane moves": Sample(
        LANE_MOVES,
        np.arange(64, dtype=np.int32) * 7 + 1,
        np.zeros(64, np.int32),
        lane_moves_result,
        ("v_permlane16_swap_b32", "v_permlane32_swap_b32", "ds_swizzle_b32", "ds_bpermute_b32"),
    ),
    "scratch": Sample(
        SCRATCH,
        RNG.integers(1, 999, 64).astype(np.int32),
        np.zeros(64, np.int32),
        scratch_result,
        ("scratch_store_dword", "scratch_load_dword"),
    ),
    "bytes": Sample(
        MIXED_BYTES,
        RNG.integers(0, 256, 256).astype(np.uint8),
        np.zeros(64, np.float32),
        mixed_bytes_result,
        ("v_cvt_f32_ubyte1",),
    ),
    "saturated": Sample(
        SATURATED,
        RNG.integers(0, 2**32, 64).astype(np.uint32),
        np.zeros(64, np.uint32),
        saturated_result,
        ("v_add_i32", "v_alignbit_b32", "v_bfrev_b32"),
    ),
    # One workgroup: on the numpy engine none may wait for another; the native one runs more, in test_sim_corpus.py.
    "look-back": Sample(
        LOOK_BACK,
        RNG.integers(-99, 99, 64).astype(np.int32),
        np.zeros(514, np.int32),
        look_back_result,
        ("buffer_wbl2", "buffer_inv", "global_load_dwordx2", "s_sleep"),
    ),
}
