"""Loading code objects: what a good one says, and a clear error for every way in which one can be bad."""

from __future__ import annotations

import pathlib
import random
import re
import struct

import pytest

from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_conv
from spconv_compiler.kernel_facts import facts_of_text
from spconv_compiler.sim import mutation
from spconv_compiler.sim.elf import CodeObject, find_kernel
from spconv_compiler.sim.errors import ObjectError
from spconv_compiler.sim.msgpack import unpack


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compile_conv(3, 16, 32, dtype="bf16", target="gfx950")


def test_kernels_and_facts(artifact: Artifact) -> None:
    """Name, arguments, registers and sizes, against what the assembly text says."""
    loaded = CodeObject(artifact.object)
    assert loaded.target == "amdgcn-amd-amdhsa-unknown-gfx950"
    stated = facts_of_text(str(artifact.isa))
    assert set(loaded.kernels) == set(stated) == set(artifact.meta["kernels"])
    for name, facts in stated.items():
        kernel = loaded.kernels[name]
        assert [(a.offset, a.size, a.kind) for a in kernel.arguments] == [
            (a.offset, a.size, a.kind) for a in facts.arguments
        ]
        assert kernel.descriptor.kernarg_bytes == facts.kernarg_bytes
        assert kernel.descriptor.lds_bytes == facts.lds_bytes
        assert kernel.descriptor.scratch_bytes == 0
        assert kernel.descriptor.vgprs >= facts.vgpr
        assert kernel.block == (facts.block, 1, 1)
        assert kernel.descriptor.group_ids[0]
        assert len(kernel.code) % 4 == 0 and kernel.address == kernel.descriptor.entry


def test_missing_kernel(artifact: Artifact) -> None:
    with pytest.raises(ObjectError, match="no kernel 'nothing'; it has: fill_grid"):
        find_kernel(CodeObject(artifact.object).kernels, "nothing")


def test_every_truncation_is_refused(artifact: Artifact) -> None:
    """The section table stands at the end of the file, so that no shorter file is whole."""
    for size in [*range(0, 80), *range(80, len(artifact.object), 97)]:
        with pytest.raises(ObjectError):
            CodeObject(artifact.object[:size])


def with_field(data: bytes, form: str, offset: int, value: int) -> bytes:
    size = struct.calcsize(form)
    return data[:offset] + struct.pack(form, value) + data[offset + size :]


@pytest.mark.parametrize(
    ("form", "offset", "value", "message"),
    [
        ("<I", 0, 0x46454C00, "no code object"),
        ("<B", 4, 1, "ELF class 1"),
        ("<B", 7, 0, "OS ABI 0"),
        ("<H", 16, 1, "type 1"),
        ("<H", 18, 62, "ELF for machine 62; accepted: 224"),
        ("<I", 48, 0x54C, r"GPU 0x4c; accepted: 0x4f \(gfx950\)"),
        ("<H", 58, 40, "section headers of 40 bytes"),
        ("<Q", 40, 2**40, "truncated code object: the section table"),
    ],
)
def test_foreign_header(artifact: Artifact, form: str, offset: int, value: int, message: str) -> None:
    with pytest.raises(ObjectError, match=message):
        CodeObject(with_field(artifact.object, form, offset, value))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"AMDGPU\0", b"BMDGPU\0", "no metadata note"),
        (b".wavefront_size\x40", b".wavefront_size\x20", "waves of 32 lanes"),
        (b".sgpr_count", b".sgpr_kount", "has .sgpr_count = None; accepted: int"),
    ],
)
def test_damaged_metadata(artifact: Artifact, old: bytes, new: bytes, message: str) -> None:
    assert old in artifact.object
    with pytest.raises(ObjectError, match=message):
        CodeObject(artifact.object.replace(old, new))


def test_metadata_of_other_arguments(artifact: Artifact) -> None:
    """The size of the arguments that the note states is not the descriptor's: one byte, as it is below 128."""
    damaged = re.sub(
        rb"(\.kernarg_segment_size)([\x04-\x78])", lambda at: at[1] + bytes([at[2][0] + 4]), artifact.object, count=1
    )
    assert damaged != artifact.object
    with pytest.raises(ObjectError, match="metadata and descriptor differ"):
        CodeObject(damaged)


def test_missing_descriptor_symbol(artifact: Artifact) -> None:
    """The metadata's own copy of the name is longer by its length byte; symbol names end with a zero byte."""
    with pytest.raises(ObjectError, match="but the code object has no such symbol"):
        CodeObject(artifact.object.replace(b"_b256.kd\0", b"_b256.kc\0"))


def test_damaged_bytes_never_escape(artifact: Artifact) -> None:
    """Any damage gives a loaded object or an ObjectError, and nothing else."""
    rng = random.Random(5)
    for _ in range(300):
        data = bytearray(artifact.object)
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            CodeObject(bytes(data))
        except ObjectError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x81\xa1a\x93\x01\xff\xc0", {"a": [1, -1, None]}),
        (b"\xcd\x01\x00", 256),
        (b"\xd1\xff\x00", -256),
        (b"\xd9\x02hi", "hi"),
        (b"\xdc\x00\x01\xc3", [True]),
        (b"\xde\x00\x01\xa1k\xce\x00\x01\x00\x00", {"k": 65536}),
    ],
)
def test_msgpack(data: bytes, value: object) -> None:
    assert unpack(data) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xcd\x01", "ends at byte 2"),
        (b"\x01\x01", "1 bytes after the end"),
        (b"\xca\0\0\0\0", "type 0xca"),
        (b"\x81\x01\x01", "a key that is no string"),
        (b"\xa1\xff", "not UTF-8"),
        (b"\x91" * 40, "nested deeper"),
    ],
)
def test_bad_msgpack(data: bytes, message: str) -> None:
    with pytest.raises(ObjectError, match=message):
        unpack(data)


def test_the_mutation_tool_on_files(
    artifact: Artifact, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes any file that a user names: a report, or one line that names the file and what is wrong with it."""
    good, short, missing = tmp_path / "good.elf", tmp_path / "short.elf", tmp_path / "missing.elf"
    good.write_bytes(artifact.object)
    short.write_bytes(artifact.object[:9000])
    assert mutation.main([str(good)]) == 0
    assert "caught" in capsys.readouterr().out
    for bad, message in ((short, "truncated code object"), (missing, "No such file")):
        assert mutation.main([str(bad)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"spconv_compiler.sim.mutation: error: {bad}: {message}") and error.count("\n") == 1
    assert mutation.main(["--help"]) == 0
    assert "code object" in capsys.readouterr().out
