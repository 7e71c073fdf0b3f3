"""The CPU kernels around the gemm, one by one: rounding, packed weights, tiles that this host's registers lack."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cpu_gemm_harness import CHUNK_ROWS, NUMPY, TORCH, bits_of, pack, random_pairs
from cpu_harness import Kernel, aligned, epilogue_kernel, kernel_of, kinds, narrow_target

from spconv_compiler.dialect.types import element_named
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.micro_kernel import MicroKernel
from spconv_compiler.passes.cpu.register_gemm import RegisterGemm
from spconv_compiler.passes.cpu.row_panels import RowPanels
from spconv_compiler.passes.kernel_builder import V, f32, fma, i32, vec


def rounding_cases() -> npt.NDArray[np.float32]:
    """Every upper half of an f32, with lower halves around the middle; an odd number of them."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return np.append((upper[:, None] | lower).ravel(), np.uint32(0x3F80_8000)).view(np.float32)


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_rounding_is_torch_s(dtype: str, activation: str) -> None:
    def define(functions: Functions) -> None:
        functions.kernel("apply", kinds("ppnn"), epilogue_kernel(functions, dtype, activation))

    sums = rounding_cases()
    out = np.zeros(len(sums), NUMPY[dtype])
    assert kernel_of(define, "apply")(sums, out, len(sums), 2) == 0
    tensor = torch.from_numpy(sums)
    wanted = bits_of((torch.where(tensor < 0, 0.0, tensor) if activation == "relu" else tensor).to(TORCH[dtype]))
    nan = np.isnan(sums)
    np.testing.assert_array_equal(out.view(wanted.dtype)[~nan].tobytes(), wanted[~nan].tobytes())
    found = torch.from_numpy(out[nan].view(np.int16 if dtype == "bf16" else out.dtype))
    assert (found.view(torch.bfloat16) if dtype == "bf16" else found).isnan().all()


@dataclasses.dataclass(frozen=True)
class PairsByParts(MicroKernel):
    """The micro-kernel for pairs of bf16, with the dot product taken apart for hosts that have no such instruction."""

    def _multiply_add(self, a: V, b: V, c: V) -> V:
        first, second = ((value.bitcast(vec(self.lanes, i32())) for value in (a, b)) for _ in range(2))
        low = [(value << 16).bitcast(vec(self.lanes, f32())) for value in first]
        high = [((value >> 16) << 16).bitcast(vec(self.lanes, f32())) for value in second]
        return fma(low[0], low[1], fma(high[0], high[1], c))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("c_in", "c_out"), [(1, 1), (4, 16), (5, 17), (33, 40)])
def test_panels_of_single_numbers(dtype: str, c_in: int, c_out: int) -> None:
    panels = RowPanels(9, c_in, c_out, 16, 1)
    weight = torch.randn(c_out, 9, c_in).to(TORCH[dtype])
    packed = pack(panels, weight).reshape(9, panels.panels, c_in, 16)
    wanted = np.zeros((9, panels.panels * 16, c_in), np.float32)
    wanted[:, :c_out] = weight.float().numpy().transpose(1, 0, 2)
    np.testing.assert_array_equal(packed, wanted.reshape(9, panels.panels, 16, c_in).transpose(0, 1, 3, 2))


@pytest.mark.parametrize(("c_in", "c_out"), [(1, 1), (4, 16), (5, 17), (33, 40)])
def test_panels_of_pairs(c_in: int, c_out: int) -> None:
    panels = RowPanels(9, c_in, c_out, 16, 2)
    weight = torch.randn(c_out, 9, c_in).to(torch.bfloat16)
    packed = pack(panels, weight).reshape(9, panels.panels, panels.k_steps, 16, 2)
    wanted = np.zeros((9, panels.panels * 16, panels.k_steps * 2), np.uint16)
    wanted[:, :c_out, :c_in] = bits_of(weight).transpose(1, 0, 2)
    wanted = wanted.reshape(9, panels.panels, 16, panels.k_steps, 2).transpose(0, 1, 3, 2, 4)
    np.testing.assert_array_equal(packed, wanted)


@pytest.mark.parametrize(("lanes", "tile"), [(8, (6, 2)), (8, (8, 1)), (8, (3, 4)), (16, (6, 4)), (16, (12, 1))])
@pytest.mark.parametrize(("c_in", "c_out"), [(1, 1), (3, 70), (16, 16), (45, 33), (128, 64), (150, 20)])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "bf16 pairs", "f16"])
def test_every_tile_gives_exact_sums(lanes: int, tile: tuple[int, int], c_in: int, c_out: int, dtype: str) -> None:
    """Whole numbers have one sum. Tiles of AVX-512 are run in halves; its bf16 instruction is taken apart."""
    name, pair_k = dtype.split()[0], 2 if dtype.endswith("pairs") else 1
    panels = RowPanels(5, c_in, c_out, tile[1] * lanes, pair_k)
    kind = PairsByParts if pair_k == 2 else MicroKernel
    micro = kind(panels, tile[0], lanes, 4)
    target = dataclasses.replace(narrow_target(), lanes=lanes)
    bodies: list[RegisterGemm] = []

    def define(functions: Functions) -> None:
        element = element_named(name)
        given = (functions, "gemm", micro, CHUNK_ROWS, element, f32(), Epilogue("relu"))
        bodies.append(RegisterGemm(*given, bias=True, residual=None))
        functions.kernel("gemm", kinds("p" * 9 + "nn"), bodies[0])

    gemm = kernel_of(define, "gemm", target)
    rows, threads = 200, 2
    pairs = random_pairs(rows, 5, c_in)
    rng = np.random.default_rng(c_out)
    features = torch.from_numpy(rng.integers(-4, 5, (rows, c_in)).astype(np.float32)).to(TORCH[name])
    features[1::2] = torch.nan
    weight = torch.from_numpy(rng.integers(-3, 4, (c_out, 5, c_in)).astype(np.float32)).to(TORCH[name])
    bias = rng.integers(-9, 10, c_out).astype(np.float32)
    out = np.full((rows + 1, c_out), np.nan, np.float32)
    scratch = aligned([threads, bodies[0].scratch_bytes], np.uint8)
    scratch[:] = 0xFF  # NaN, wherever it is read before it is written
    buffers = [bits_of(features), pack(panels, weight), bias, out, pairs.words, pairs.chunk_first, pairs.tap_first]
    assert gemm(*buffers, pairs.origin, scratch, rows, threads) == 0

    wanted = np.tile(bias.astype(np.float64), (rows, 1))
    for tap, row, place in pairs.triples:
        wanted[place] += weight[:, tap].double().numpy() @ features[row].double().numpy()
    np.testing.assert_array_equal(out[:rows], np.maximum(wanted, 0))
    assert np.isnan(out[rows]).all()


WITHOUT_THREADS = """
import resource, sys, threading
import numpy as np
sys.path.insert(0, {tests!r})
from cpu_harness import epilogue_kernel, kernel_of, kinds

def define(functions):
    body = epilogue_kernel(functions, "f32", "relu")
    functions.kernel("apply", kinds("ppnn"), body)

kernel = kernel_of(define, "apply")
sums = np.random.default_rng(0).standard_normal(5_000_000).astype(np.float32)
out, wanted = np.zeros_like(sums), np.maximum(sums, 0)
with open("/proc/self/status") as status:
    used = 1024 * int(next(line for line in status if line.startswith("VmSize")).split()[1])
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
try:
    threading.Thread(target=print).start()
    sys.exit("a thread can be made after all")
except RuntimeError:
    result = kernel(sums, out, len(sums), 64)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert result == 0
np.testing.assert_array_equal(out, wanted)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits address space as Linux does")
def test_work_is_done_where_no_thread_can_be_made(request: pytest.FixtureRequest) -> None:
    """A thread's stack of several megabytes does not fit the address space that is left."""
    code = WITHOUT_THREADS.format(tests=str(request.path.parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_workers_are_used_and_joined() -> None:
    """Four workers at once leave no thread behind."""

    def define(functions: Functions) -> None:
        functions.kernel("apply", kinds("ppnn"), epilogue_kernel(functions, "f32", "none"))

    def threads() -> int:
        with open("/proc/self/status", encoding="ascii") as status:
            return int(next(line for line in status if line.startswith("Threads")).split()[1])

    kernel: Kernel = kernel_of(define, "apply")
    sums = np.arange(5_000_000, dtype=np.float32)
    out = np.zeros_like(sums)
    before = threads()
    for _ in range(5):
        assert kernel(sums, out, len(sums), 4) == 0
    np.testing.assert_array_equal(out, sums)
    assert threads() == before
