"""What a target is: a frozen table of facts. Passes ask it; nothing compares its name."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class MmaShape:
    """One matrix multiply-accumulate instruction of a wave.

    Attributes:
        m, n, k: tile sizes; every lane holds m·k/wave elements of A, n·k/wave of B and m·n/wave of C and D.
        element: dtype of A and B; C and D are f32.
        intrinsic: the op that issues it.
        passes: occupancy of the matrix pipe, 4 clocks each.
    """

    m: int
    n: int
    k: int
    element: str
    intrinsic: str
    passes: int

    def lane_elements(self, wave: int) -> tuple[int, int]:
        """(elements of A and of B a lane holds, elements of C and D a lane holds)."""
        if (self.m * self.k) % wave or (self.n * self.k) % wave or (self.m * self.n) % wave or self.m != self.n:
            raise ValueError(f"{self} does not divide over {wave} lanes")
        return self.m * self.k // wave, self.m * self.n // wave


@dataclasses.dataclass(frozen=True)
class Target:
    """Facts common to all targets.

    Attributes:
        name: as users write it.
        path: the levels that a module passes through, in order (levels.py, pipeline.py).
        dtypes: feature dtypes that kernels accept.
    """

    name: str
    path: tuple[str, ...]
    dtypes: tuple[str, ...]

    @property
    def narrow_cells(self) -> int:
        """Most cells of the padded box that kernels with 32-bit keys can handle: keys are signed."""
        return 2**31 - 1

    @property
    def plain_dtype(self) -> str:
        """The dtype of features where nothing asks for one."""
        return "f32" if "f32" in self.dtypes else self.dtypes[0]

    def facts(self) -> dict[str, object]:
        """Every fact, for the cache key."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Rates:
    """How fast a GPU is, as far as the choice of a schedule needs to know (schedules/cost.py).

    Attributes:
        clock_ghz: of the compute units. matrix_pipes: of one of them.
        l2_bytes_per_clock: of one chiplet's second-level cache. memory_tb_s: behind those caches.
        atomics_g_s: float atomics on 64 bytes, a nanosecond, whole chip. launch_us: of one kernel.
    """

    clock_ghz: float
    matrix_pipes: int
    l2_bytes_per_clock: float
    memory_tb_s: float
    atomics_g_s: float
    launch_us: float


@dataclasses.dataclass(frozen=True)
class GpuTarget(Target):
    """A GPU.

    Attributes:
        chip: LLVM's processor name.
        wave: lanes of a wave.
        lds_bytes: local memory one workgroup may use.
        max_workgroup: lanes of a workgroup.
        compute_units, waves_per_unit: how many waves the chip holds.
        buffer_limit_bytes: how far 32-bit buffer addressing reaches.
        mma: matrix instructions, preferred first.
        atomics: (kind, dtype) pairs that are one instruction without a loop.
        chiplets: parts with a second-level cache of their own; workgroups go to them in turn.
        rates: how fast it is, if that is known; without, the first schedule that serves is chosen.
        simulated: whether code runs on the simulator instead of a GPU.
        code_of: the target whose code this one runs; "": its own.
        warpgroup_dtypes: what warpgroups of four waves multiply out of shared memory.
        runtime: whose driver runs it: "hip" or "cuda".
    """

    chip: str
    wave: int
    lds_bytes: int
    max_workgroup: int
    compute_units: int
    waves_per_unit: int
    buffer_limit_bytes: int
    mma: tuple[MmaShape, ...]
    atomics: tuple[tuple[str, str], ...]
    chiplets: int = 1
    rates: Rates | None = None
    simulated: bool = False
    code_of: str = ""
    warpgroup_dtypes: tuple[str, ...] = ()
    runtime: str = "hip"

    @property
    def narrow_cells(self) -> int:
        """As Target's; here a cell takes 4 bytes of a grid in whole vectors of 16, which a buffer must reach."""
        return self.buffer_limit_bytes // 16 * 4

    @property
    def device_tensors(self) -> bool:
        """Whether tensors may lie on the device that runs the code."""
        return not self.simulated

    def mma_for(self, element: str) -> MmaShape | None:
        """The preferred matrix instruction for a dtype."""
        return next((shape for shape in self.mma if shape.element == element), None)


@dataclasses.dataclass(frozen=True)
class TileUnit:
    """Tile registers of a processor, and the product of two on top of a third, with sums in f32.

    Attributes:
        element: dtype of the operands.
        rows: most rows of a register; row_bytes: most bytes of one of them.
        tiles: registers.
    """

    element: str
    rows: int
    row_bytes: int
    tiles: int


@dataclasses.dataclass(frozen=True)
class CpuTarget(Target):
    """An x86-64 processor.

    Attributes:
        llvm_cpu, llvm_features: what code is generated for.
        requires: features without which the code must not be run, as toolchain.host_cpu_features spells them.
        slower_with: features of processors that run the code of a lower level faster; `cpu` passes over this one there.
        tile_unit: tile registers, which the system must grant to the process (tile_grant.py).
        lanes: f32 elements of the widest vector register.
        fma: fused multiply-add in one instruction.
        bf16_dot: bf16 pairs multiplied and accumulated in f32 in one instruction.
        tiles: (rows, vectors) of f32 accumulators that the register file holds beside their operands, best first.
    """

    llvm_cpu: str
    llvm_features: tuple[str, ...]
    requires: tuple[str, ...]
    lanes: int
    fma: bool
    bf16_dot: bool
    tiles: tuple[tuple[int, int], ...]
    slower_with: tuple[str, ...] = ()
    tile_unit: TileUnit | None = None
