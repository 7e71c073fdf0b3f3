"""Words for kernels of warpgroups on sm_90: copies that complete on barriers in shared memory, and wgmma.

Facts: NVIDIA's PTX ISA, sections on cp.async, cp.async.bulk, mbarrier and wgmma. A matrix tile in shared memory has
rows of 32, 64 or 128 bytes whose 16-byte chunks are permuted ("swizzled"): chunk c of row r lies at place
c xor (r div (128 / row bytes)) mod (row bytes / 16), so that eight rows spread over all banks.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir, llvm
from spconv_compiler.passes.kernel_builder import V, const, f32, i32, i64

WARPGROUP = 128
CHUNK = 16
_TICKS = 0x989680
_SWIZZLE = {128: 1, 64: 2, 32: 3}


def _op(name: str, operands: list[V] | None = None, results: list[ir.Type] | None = None, **attributes: str) -> list[V]:
    made = ir.Operation.create(
        name,
        results=results or [],
        operands=[value.value for value in operands or []],
        attributes={key: ir.Attribute.parse(text) for key, text in attributes.items()},
    )
    return [V(result) for result in made.results]


def shared_pointer(number: V) -> V:
    """The !llvm.ptr<3> of an i32 address."""
    return V(llvm.inttoptr(ir.Type.parse("!llvm.ptr<3>"), number.value))


def shared_base(symbol: str) -> V:
    """i32: where a kernel's dynamic shared memory begins; it starts at a multiple of 1024."""
    pointer = llvm.AddressOfOp(ir.Type.parse("!llvm.ptr<3>"), ir.FlatSymbolRefAttr.get(symbol)).result
    return V(llvm.ptrtoint(i32(), pointer))


def declare_dynamic_shared(symbol: str) -> None:
    """The module's name for dynamic shared memory, at the insertion point."""
    ir.Operation.create(
        "llvm.mlir.global",
        regions=1,
        attributes={
            "sym_name": ir.StringAttr.get(symbol),
            "global_type": ir.TypeAttr.get(ir.Type.parse("!llvm.array<0 x i8>")),
            "linkage": ir.Attribute.parse("#llvm.linkage<external>"),
            "addr_space": ir.IntegerAttr.get(i32(), 3),
            "alignment": ir.IntegerAttr.get(i64(), 1024),
        },
    )


def init_barrier(address: V, arrivals: int) -> None:
    """A barrier that turns after so many arrivals (and the bytes that they announce)."""
    _op("nvvm.mbarrier.init", [shared_pointer(address), const(arrivals, i32())])


def publish_barriers() -> None:
    """Makes initialised barriers known to the copy engine."""
    _op("nvvm.fence.mbarrier.init")


def arrive(address: V) -> None:
    _op(
        "nvvm.mbarrier.arrive",
        [shared_pointer(address)],
        [i64()],
        relaxed="false",
        scope="#nvvm.mem_scope<cta>",
    )


def arrive_expecting(address: V, count: int) -> None:
    """Arrives, and announces `count` bytes of bulk copies that the barrier then waits for too."""
    _op(
        "nvvm.mbarrier.arrive.expect_tx",
        [shared_pointer(address), const(count, i32())],
        relaxed="false",
        scope="#nvvm.mem_scope<cta>",
    )


def wait_barrier(address: V, parity: V) -> None:
    """Waits until the phase of this parity is over; a new barrier counts as past phase 1."""
    _op("nvvm.mbarrier.try_wait.parity", [shared_pointer(address), parity, const(_TICKS, i32())])


def copy_bulk(target: V, source: V, count: int, barrier: V) -> None:
    """One thread copies `count` bytes (a multiple of 16) from global to shared memory; they arrive at the barrier."""
    cluster = V(llvm.AddrSpaceCastOp(ir.Type.parse("!llvm.ptr<7>"), shared_pointer(target).value).result)
    _op(
        "nvvm.cp.async.bulk.shared.cluster.global",
        [cluster, source, shared_pointer(barrier), const(count, i32())],
        operandSegmentSizes="array<i32: 1, 1, 1, 1, 0, 0>",
    )


def copy_chunk(target: V, source: V, size: V) -> None:
    """Copies 16 bytes from global to shared memory, of which the first `size` are read and the others zero."""
    _op(
        "nvvm.cp.async.shared.global",
        [shared_pointer(target), source, size],
        modifier="#nvvm<load_cache_modifier cg>",
        size=f"{CHUNK} : i32",
    )


def arrive_after_copies(address: V) -> None:
    """This thread arrives once the chunks that it has copied so far are there."""
    _op("nvvm.cp.async.mbarrier.arrive", [shared_pointer(address)], noinc="true")


def see_copies() -> None:
    """Makes what chunk copies wrote visible to the matrix unit."""
    _op("nvvm.fence.proxy", kind="#nvvm.proxy_kind<async.shared>", space="#nvvm.shared_space<cta>")


@dataclasses.dataclass(frozen=True)
class MatrixTile:
    """Layout of a tile of rows of `row_bytes` (32, 64 or 128) in shared memory, from a multiple of 1024 on."""

    row_bytes: int

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return self.row_bytes // CHUNK

    def place(self, row: V, chunk: V) -> V:
        """i32: bytes from the tile's start to a chunk."""
        turned = chunk ^ ((row // (128 // self.row_bytes)) % self.chunks)
        return row * self.row_bytes + turned * CHUNK

    def descriptor(self, address: V) -> V:
        """i64: what wgmma takes for the tile, its rows along M or N; 2 more is 16 elements of K further."""
        fixed = (1 << 16) | (8 * self.row_bytes // CHUNK << 32) | (_SWIZZLE[self.row_bytes] << 62)
        signed = fixed - (1 << 64) if fixed >> 63 else fixed
        return ((address // CHUNK) & 0x3FFF).to(i64()) | const(signed, i64())


def accumulators(columns: int) -> V:
    """Zeros: the sums of 64 rows and `columns` columns that a warpgroup holds, columns / 2 a thread."""
    struct = f"!llvm.struct<({', '.join(['f32'] * (columns // 2))})>"
    return V(llvm.ZeroOp(ir.Type.parse(struct)).result)


def accumulator(sums: V, number: int) -> V:
    """f32: one of the sums that this thread holds."""
    return V(llvm.ExtractValueOp(f32(), sums.value, [number]).result)


def start_multiplying() -> None:
    _op("nvvm.wgmma.fence.aligned")


def multiply(sums: V, a: V, b: V, columns: int, element: str) -> V:
    """sums + A·B over 16 elements of K: A 64 rows and B `columns` rows by their descriptors."""
    return _op(
        "nvvm.wgmma.mma_async",
        [sums, a, b],
        [sums.type],
        layoutA="#nvvm.mma_layout<row>",
        layoutB="#nvvm.mma_layout<col>",
        scaleA="#nvvm.wgmma_scale_in<one>",
        scaleB="#nvvm.wgmma_scale_in<one>",
        scaleD="#nvvm.wgmma_scale_out<one>",
        shape=f"#nvvm.shape<m = 64, n = {columns}, k = 16>",
        typeA=f"#nvvm.wgmma_type<{element}>",
        typeB=f"#nvvm.wgmma_type<{element}>",
        typeD="#nvvm.wgmma_type<f32>",
    )[0]


def commit_multiplications() -> None:
    _op("nvvm.wgmma.commit.group.sync.aligned")


def wait_multiplications(pending: int) -> None:
    """Waits until at most `pending` committed groups are unfinished."""
    _op("nvvm.wgmma.wait.group.sync.aligned", group=f"{pending} : i64")
