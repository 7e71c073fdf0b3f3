"""Pairs of instructions that share a register, in the two notations of LLVM: assembly text and machine IR.

Every instruction has roles, each a register operand that it reads or writes. A pair lets one role of the second
instruction name the register of a role of the first, and keeps all others apart: read after write, write after write,
write after read. `python hazard_pairs.py` asks LLVM's hazard recogniser how many wait states it puts between the two,
and records those that are not zero in hazard_pairs.json. It needs an LLVM that reads machine IR for gfx950: the one
in the triton wheel (`pip install triton`) does.

Not compared: uses of what a load fetches (LLVM puts an s_waitcnt there, which counts as a state), packed f32 arithmetic
behind an MFMA (LLVM takes it apart there), indirect moves, GDS, traps, scratch, MFMAs of f64, sparse MFMAs, most of
those of earlier chips with each other, and branches on VCCZ and EXECZ.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

RECORD = pathlib.Path(__file__).with_suffix(".json")
# Where the registers of the first and of the second instruction lie, role after role.
_PLACES = {
    "v": ((32, 64, 96, 128, 144, 148), (160, 184, 208, 232, 248, 252)),
    "a": ((32, 64), (160, 192)),
    "s": ((8, 16, 24), (40, 48, 56)),
}
_FILES = {"v": "vgpr", "a": "agpr", "s": "sgpr"}
_FIXED = {"vcc": "$vcc", "m0": "$m0", "exec": "$exec", "mode": "$mode"}


@dataclasses.dataclass(frozen=True)
class Form:
    """One instruction.

    Attributes:
        asm, mir: with roles in braces; in mir, EXEC and MODE stand for the implied operands.
        roles: name -> (file, registers, "r", "w" or "rw"); files "vcc", "m0", "exec" and "mode" are these registers,
            which the text does not name.
    """

    name: str
    asm: str
    mir: str
    roles: dict[str, tuple[str, int, str]]


def _form(name: str, asm: str, mir: str, **roles: str) -> Form:
    """Roles as "v1w": file, number of registers, access."""
    split = {}
    for role, text in roles.items():
        match = re.fullmatch(r"(vcc|m0|exec|mode|[vas])(\d*)([rw]+)", text)
        assert match is not None, text
        split[role] = (match[1], int(match[2] or 1), match[3])
    if "exec" not in split and ("EXEC" in mir or "MODE" in mir):
        split["exec"] = ("exec", 1, "r")
    return Form(name, asm, mir, split)


_F4 = " cbsz:4 blgp:4"


def _matrix(name: str, opcode: str, machine: str, total: int, operand: int, more: str = "", tail: str = "") -> Form:
    early = "early-clobber " if total == 16 else ""
    flags = more or ", 0, 0, 0"
    mir = f"{early}{{d}} = V_MFMA_{machine}_vgprcd_e64 {{a}}, {{b}}, {{c}}{flags}MODE"
    n, m = f"v{operand}r", f"v{total}"
    return _form(name, f"{opcode} {{d}}, {{a}}, {{b}}, {{c}}{tail}", mir, d=f"{m}w", a=n, b=n, c=f"{m}r")


MATRICES = [
    _matrix("bf16 16x16x32", "v_mfma_f32_16x16x32_bf16", "F32_16X16X32_BF16", 4, 4),
    _matrix("bf16 32x32x16", "v_mfma_f32_32x32x16_bf16", "F32_32X32X16_BF16", 16, 4),
    _matrix("f16 16x16x32", "v_mfma_f32_16x16x32_f16", "F32_16X16X32_F16", 4, 4),
    _matrix("f16 32x32x16", "v_mfma_f32_32x32x16_f16", "F32_32X32X16_F16", 16, 4),
    _matrix("f32 16x16x4", "v_mfma_f32_16x16x4_f32", "F32_16X16X4F32", 4, 1),
    _matrix("f32 32x32x2", "v_mfma_f32_32x32x2_f32", "F32_32X32X2F32", 16, 1),
    _matrix("i8 16x16x64", "v_mfma_i32_16x16x64_i8", "I32_16X16X64_I8", 4, 4),
    _matrix("i8 32x32x32", "v_mfma_i32_32x32x32_i8", "I32_32X32X32_I8", 16, 4),
    _matrix("fp8 16x16x32", "v_mfma_f32_16x16x32_fp8_fp8", "F32_16X16X32_FP8_FP8", 4, 2),
    _matrix("fp8 32x32x16", "v_mfma_f32_32x32x16_fp8_fp8", "F32_32X32X16_FP8_FP8", 16, 2),
    _matrix("f8 16x16x128", "v_mfma_f32_16x16x128_f8f6f4", "F32_16X16X128_F8F6F4_f8_f8", 4, 8, ", 0, 0"),
    _matrix("f8 32x32x64", "v_mfma_f32_32x32x64_f8f6f4", "F32_32X32X64_F8F6F4_f8_f8", 16, 8, ", 0, 0"),
    _matrix("f4 16x16x128", "v_mfma_f32_16x16x128_f8f6f4", "F32_16X16X128_F8F6F4_f4_f4", 4, 4, ", 4, 4", _F4),
    _matrix("f4 32x32x64", "v_mfma_f32_32x32x64_f8f6f4", "F32_32X32X64_F8F6F4_f4_f4", 16, 4, ", 4, 4", _F4),
]
# Compared with themselves and with the first of the others only.
MORE_MATRICES = [
    _matrix("f16 16x16x16", "v_mfma_f32_16x16x16_f16", "F32_16X16X16F16", 4, 2),
    _matrix("i8 32x32x16", "v_mfma_i32_32x32x16_i8", "I32_32X32X16I8", 16, 2),
    _matrix("bf8 fp8 16x16x32", "v_mfma_f32_16x16x32_bf8_fp8", "F32_16X16X32_BF8_FP8", 4, 2),
]
_BUFFER = "{p}, {r}, 0, 0, 0, 0EXEC"
FORMS = [
    *MATRICES,
    *MORE_MATRICES,
    _form("scaled f8",
          "v_mfma_scale_f32_16x16x128_f8f6f4 {d}, {a}, {b}, {c}, {x}, {y} op_sel_hi:[0,0,0]",
          "{d} = V_MFMA_SCALE_F32_16X16X128_F8F6F4_f8_f8_vgprcd_e64 {a}, {b}, {c}, 0, 0, {x}, {y}, 0, 0MODE",
          d="v4w", a="v8r", b="v8r", c="v4r", x="v1r", y="v1r"),
    _form("valu", "v_add_u32_e32 {d}, {a}, {b}", "{d} = V_ADD_U32_e32 {a}, {b}EXEC", d="v1w", a="v1r", b="v1r"),
    _form("valu s", "v_mov_b32_e32 {d}, {s}", "{d} = V_MOV_B32_e32 {s}EXEC", d="v1w", s="s1r"),
    _form("packed", "v_pk_add_f32 {d}, {a}, {b}", "{d} = V_PK_ADD_F32 8, {a}, 8, {b}, 0, 0, 0, 0, 0MODE",
          d="v2w", a="v2r", b="v2r"),
    _form("trans", "v_exp_f32_e32 {d}, {a}", "{d} = V_EXP_F32_e32 {a}MODE", d="v1w", a="v1r"),
    _form("dpp", "v_mov_b32_dpp {d}, {a} row_shl:1 row_mask:0xf bank_mask:0xf",
          "{d} = V_MOV_B32_dpp {d}, {a}, 257, 15, 15, 0EXEC", d="v1rw", a="v1r"),
    _form("sdwa", "v_mov_b32_sdwa {d}, {a} dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:DWORD",
          "{d} = V_MOV_B32_sdwa 0, {a}, 0, 4, 2, 6, implicit {d}(tied-def 0)EXEC", d="v1rw", a="v1r"),
    _form("swap 32", "v_permlane32_swap_b32_e32 {d}, {e}",
          "{d}, {e} = V_PERMLANE32_SWAP_B32_e32 {d}, {e}EXEC", d="v1rw", e="v1rw"),
    _form("swap 16", "v_permlane16_swap_b32_e32 {d}, {e}",
          "{d}, {e} = V_PERMLANE16_SWAP_B32_e32 {d}, {e}EXEC", d="v1rw", e="v1rw"),
    _form("cmp", "v_cmp_gt_u32_e64 {m}, {a}, {b}", "{m} = V_CMP_GT_U32_e64 {a}, {b}EXEC",
          m="s2w", a="v1r", b="v1r"),
    _form("cmp vcc", "v_cmp_gt_u32_e32 vcc, {a}, {b}", "V_CMP_GT_U32_e32 {a}, {b}, implicit-def $vccEXEC",
          vcc="vccw", a="v1r", b="v1r"),
    _form("cmpx", "v_cmpx_gt_u32_e32 vcc, {a}, {b}",
          "V_CMPX_GT_U32_e32 {a}, {b}, implicit-def $exec, implicit-def $vccEXEC",
          exec="execw", vcc="vccw", a="v1r", b="v1r"),
    _form("select", "v_cndmask_b32_e64 {d}, {a}, {b}, {m}", "{d} = V_CNDMASK_B32_e64 0, {a}, 0, {b}, {m}EXEC",
          d="v1w", a="v1r", b="v1r", m="s2r"),
    _form("select vcc", "v_cndmask_b32_e32 {d}, {a}, {b}, vcc",
          "{d} = V_CNDMASK_B32_e32 {a}, {b}, implicit $vccEXEC", d="v1w", a="v1r", b="v1r", vcc="vccr"),
    _form("add carry", "v_add_co_u32_e64 {d}, {m}, {a}, {b}", "{d}, {m} = V_ADD_CO_U32_e64 {a}, {b}, 0EXEC",
          d="v1w", m="s2w", a="v1r", b="v1r"),
    _form("addc vcc", "v_addc_co_u32_e32 {d}, vcc, {a}, {b}, vcc",
          "{d} = V_ADDC_U32_e32 {a}, {b}, implicit-def $vcc, implicit $vccEXEC",
          d="v1w", a="v1r", b="v1r", vcc="vccrw"),
    _form("fmas", "v_div_fmas_f32 {d}, {a}, {b}, {c}",
          "{d} = V_DIV_FMAS_F32_e64 0, {a}, 0, {b}, 0, {c}, 0, 0, implicit $mode, implicit $vccEXEC",
          d="v1w", a="v1r", b="v1r", c="v1r", vcc="vccr"),
    _form("first lane", "v_readfirstlane_b32 {s}, {a}", "{s} = V_READFIRSTLANE_B32 {a}EXEC", s="s1w", a="v1r"),
    _form("read lane", "v_readlane_b32 {s}, {a}, {l}", "{s} = V_READLANE_B32 {a}, {l}",
          s="s1w", a="v1r", l="s1r", exec="execr"),
    _form("write lane", "v_writelane_b32 {d}, {s}, 3", "{d} = V_WRITELANE_B32 {s}, 3, {d}",
          d="v1rw", s="s1r", exec="execr"),
    _form("write lane l", "v_writelane_b32 {d}, 1, {l}", "{d} = V_WRITELANE_B32 1, {l}, {d}",
          d="v1rw", l="s1r", exec="execr"),
    _form("acc write", "v_accvgpr_write_b32 {d}, {a}", "{d} = V_ACCVGPR_WRITE_B32_e64 {a}EXEC", d="a1w", a="v1r"),
    _form("acc read", "v_accvgpr_read_b32 {d}, {a}", "{d} = V_ACCVGPR_READ_B32_e64 {a}EXEC", d="v1w", a="a1r"),
    _form("salu", "s_add_u32 {s}, {t}, 1", "{s} = S_ADD_U32 {t}, 1, implicit-def $scc", s="s1w", t="s1r"),
    _form("salu m0", "s_mov_b32 m0, 0", "$m0 = S_MOV_B32 0", m0="m0w"),
    _form("salu exec", "s_mov_b64 exec, -1", "$exec = S_MOV_B64 -1", exec="execw"),
    _form("smem", "s_load_dword {s}, {b}, 0x0", "{s} = S_LOAD_DWORD_IMM {b}, 0, 0 :: (load (s32))", s="s1w", b="s2r"),
    _form("buffer load", "buffer_load_dword {d}, {p}, {r}, 0 offen",
          f"{{d}} = BUFFER_LOAD_DWORD_OFFEN {_BUFFER} :: (load (s32))", d="v1w", p="v1r", r="s4r"),
    _form("buffer load o", "buffer_load_dword {d}, {p}, {r}, {o} offen",
          "{d} = BUFFER_LOAD_DWORD_OFFEN {p}, {r}, {o}, 0, 0, 0EXEC :: (load (s32))",
          d="v1w", p="v1r", r="s4r", o="s1r"),
    _form("buffer load x4", "buffer_load_dwordx4 {d}, {p}, {r}, 0 offen",
          f"{{d}} = BUFFER_LOAD_DWORDX4_OFFEN {_BUFFER} :: (load (s128))", d="v4w", p="v1r", r="s4r"),
    _form("buffer store", "buffer_store_dword {d}, {p}, {r}, 0 offen",
          f"BUFFER_STORE_DWORD_OFFEN_exact {{d}}, {_BUFFER} :: (store (s32))", d="v1r", p="v1r", r="s4r"),
    _form("buffer store x2", "buffer_store_dwordx2 {d}, {p}, {r}, 0 offen",
          f"BUFFER_STORE_DWORDX2_OFFEN_exact {{d}}, {_BUFFER} :: (store (s64))", d="v2r", p="v1r", r="s4r"),
    _form("buffer store x4", "buffer_store_dwordx4 {d}, {p}, {r}, 0 offen",
          f"BUFFER_STORE_DWORDX4_OFFEN_exact {{d}}, {_BUFFER} :: (store (s128))", d="v4r", p="v1r", r="s4r"),
    _form("buffer store x4 o", "buffer_store_dwordx4 {d}, {p}, {r}, {o} offen",
          "BUFFER_STORE_DWORDX4_OFFEN_exact {d}, {p}, {r}, {o}, 0, 0, 0EXEC :: (store (s128))",
          d="v4r", p="v1r", r="s4r", o="s1r"),
    _form("buffer atomic", "buffer_atomic_add_f32 {d}, {p}, {r}, 0 offen",
          "BUFFER_ATOMIC_ADD_F32_OFFEN {d}, {p}, {r}, 0, 0, 0EXEC :: (load store syncscope(\"agent\") monotonic (s32))",
          d="v1r", p="v1r", r="s4r"),
    _form("lds dma", "buffer_load_dword {p}, {r}, 0 offen lds",
          "BUFFER_LOAD_DWORD_LDS_OFFEN {p}, {r}, 0, 0, 0, 0, 0EXEC, implicit $m0 "
          ":: (load (s32), addrspace 1), (store (s32), addrspace 3)", p="v1r", r="s4r", m0="m0r"),
    _form("global load", "global_load_dword {d}, {p}, off",
          "{d} = GLOBAL_LOAD_DWORD {p}, 0, 0EXEC :: (load (s32), addrspace 1)", d="v1w", p="v2r"),
    _form("global load s", "global_load_dword {d}, {p}, {b}",
          "{d} = GLOBAL_LOAD_DWORD_SADDR {b}, {p}, 0, 0EXEC :: (load (s32), addrspace 1)", d="v1w", p="v1r", b="s2r"),
    _form("global store x4", "global_store_dwordx4 {p}, {d}, off",
          "GLOBAL_STORE_DWORDX4 {p}, {d}, 0, 0EXEC :: (store (s128), addrspace 1)", d="v4r", p="v2r"),
    _form("flat load", "flat_load_dword {d}, {p}",
          "{d} = FLAT_LOAD_DWORD {p}, 0, 0EXEC, implicit $flat_scr :: (load (s32))", d="v1w", p="v2r"),
    _form("flat store x4", "flat_store_dwordx4 {p}, {d}",
          "FLAT_STORE_DWORDX4 {p}, {d}, 0, 0EXEC, implicit $flat_scr :: (store (s128))", d="v4r", p="v2r"),
    _form("setreg", "s_setreg_b32 hwreg(HW_REG_MODE, 0, 4), {s}",
          "S_SETREG_B32 {s}, 6145, implicit-def $mode, implicit $mode", s="s1r", mode="modew"),
    _form("getreg", "s_getreg_b32 {s}, hwreg(HW_REG_MODE, 0, 4)",
          "{s} = S_GETREG_B32 6145, implicit $mode", s="s1w", mode="moder"),
    _form("lds read", "ds_read_b32 {d}, {p}", "{d} = DS_READ_B32_gfx9 {p}, 0, 0EXEC :: (load (s32), addrspace 3)",
          d="v1w", p="v1r"),
    _form("lds write", "ds_write_b32 {p}, {d}", "DS_WRITE_B32_gfx9 {p}, {d}, 0, 0EXEC :: (store (s32), addrspace 3)",
          d="v1r", p="v1r"),
    _form("lds write x4", "ds_write_b128 {p}, {d}",
          "DS_WRITE_B128_gfx9 {p}, {d}, 0, 0EXEC :: (store (s128), addrspace 3)", d="v4r", p="v1r"),
    _form("permute", "ds_bpermute_b32 {d}, {p}, {a}", "{d} = DS_BPERMUTE_B32 {p}, {a}, 0EXEC",
          d="v1w", p="v1r", a="v1r"),
]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two instructions and the roles that share a register; shift: registers between the two."""

    first: Form
    one: str
    second: Form
    other: str
    shift: int

    @property
    def name(self) -> str:
        shift = f" +{self.shift}" if self.shift else ""
        return f"{self.first.name}.{self.one} > {self.second.name}.{self.other}{shift}"

    def lines(self) -> tuple[str, str]:
        """Both instructions as assembly text."""
        return tuple(_fill(form.asm, form, place, asm=True) for form, place in self._placed())  # type: ignore[return-value]

    def machine(self) -> str:
        """The body of a function in machine IR that keeps the order and every result."""
        bodies, kept = [], []
        for form, place in self._placed():
            text = form.mir.replace("MODE", ", implicit $modeEXEC").replace("EXEC", ", implicit $exec")
            bodies.append(_fill(text, form, place, asm=False))
            kept += [_register(*place[role], asm=False) for role, (file, _, use) in form.roles.items()
                     if "w" in use and file not in _FIXED]
        end = "".join(f", implicit {register}" for register in dict.fromkeys([*kept, "$vcc", "$exec", "$m0"]))
        return f"    {bodies[0]}\n    SCHED_BARRIER 0\n    {bodies[1]}\n    S_ENDPGM 0{end}\n"

    def _placed(self) -> list[tuple[Form, dict[str, tuple[str, int, int]]]]:
        first, second = (_places(form, side) for side, form in enumerate((self.first, self.second)))
        file, start, _ = first[self.one]
        second[self.other] = (file, start + self.shift, second[self.other][2])
        return [(self.first, first), (self.second, second)]


def pairs() -> Iterator[Pair]:
    """Every pair of forms and roles of one register file, one of them written."""
    for first in FORMS:
        for second in FORMS:
            if not _wanted(first, second):
                continue
            for one, (file, count, use) in first.roles.items():
                for other, (same, _, access) in second.roles.items():
                    if file == same and ("w" in use or "w" in access):
                        yield Pair(first, one, second, other, 0)
                        if "MFMA" in first.mir and "MFMA" in second.mir and count >= 4:
                            yield Pair(first, one, second, other, 2)


def _wanted(first: Form, second: Form) -> bool:
    """Not every MFMA with every other one."""
    more = [form for form in (first, second) if form in MORE_MATRICES]
    others = [form for form in (first, second) if form in MATRICES[1:]]
    return not (more and others or len(more) == 2 and first is not second)


def _places(form: Form, side: int) -> dict[str, tuple[str, int, int]]:
    """role -> (file, first register, registers)."""
    used = {file: iter(places[side]) for file, places in _PLACES.items()}
    return {role: (file, next(used[file]) if file in used else 0, n) for role, (file, n, _) in form.roles.items()}


def _register(file: str, first: int, count: int, asm: bool) -> str:
    if file in _FIXED:
        return file if asm else _FIXED[file]
    if asm:
        return f"{file}{first}" if count == 1 else f"{file}[{first}:{first + count - 1}]"
    return "$" + "_".join(f"{_FILES[file]}{number}" for number in range(first, first + count))


def _fill(text: str, form: Form, place: dict[str, tuple[str, int, int]], asm: bool) -> str:
    return text.format(**{role: _register(*place[role], asm=asm) for role in form.roles})


# Asking LLVM.

_MODULE = """--- |
  target triple = "amdgcn-amd-amdhsa"
{declarations}
  attributes #0 = {{ "target-cpu"="gfx950" }}
...
"""
_FUNCTION = """---
name: k{number}
tracksRegLiveness: false
machineFunctionInfo:
  isEntryFunction: true
body: |
  bb.0:
{body}...
"""
_ASK = """
import sys
from triton._C.libtriton import llvm
llvm.init_targets()
sys.stdout.write(llvm.translate_mir_to_asm(sys.argv[1], "amdgcn-amd-amdhsa", "gfx950", "", [], False, False))
"""


def ask_llvm(bodies: list[str]) -> list[list[str]]:
    """The instructions that LLVM makes of each function body, s_nop included; it must be importable as triton."""
    declarations = "\n".join(f"  define amdgpu_kernel void @k{n}() #0 {{ ret void }}" for n in range(len(bodies)))
    text = _MODULE.format(declarations=declarations)
    text += "".join(_FUNCTION.format(number=number, body=body) for number, body in enumerate(bodies))
    with tempfile.NamedTemporaryFile("w", suffix=".mir") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([sys.executable, "-c", _ASK, file.name], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"LLVM refuses: {done.stderr[-2000:]}")
    found = re.split(r"^k\d+:.*$", done.stdout, flags=re.MULTILINE)[1:]
    return [re.findall(r"^\t([a-z]\w+.*)$", part.split("s_endpgm")[0], re.MULTILINE) for part in found]


def inserted(lines: list[str]) -> int | None:
    """Wait states between the first and the last instruction; None where LLVM put anything but s_nop there."""
    between = lines[1:-1]
    if not all(line.startswith("s_nop") for line in between):
        return None
    return sum(int(line.split()[1]) + 1 for line in between)


@dataclasses.dataclass(frozen=True)
class Record:
    """What LLVM said: wait states by pair, where there are any; pairs between which it puts something else."""

    pairs: int
    waits: dict[str, int]
    unreached: set[str]


def read_record() -> Record:
    """hazard_pairs.json; there, pairs are listed by their first instruction, and −1 stands for unreached."""
    data = json.loads(RECORD.read_text())
    found = {f"{one} > {other}": states for one, others in data["waits"].items() for other, states in others.items()}
    waits = {name: states for name, states in found.items() if states > 0}
    return Record(data["pairs"], waits, found.keys() - waits.keys())


def main() -> None:
    """Writes hazard_pairs.json."""
    every = list(pairs())
    found: dict[str, dict[str, int]] = {}
    for start in range(0, len(every), 500):
        chunk = every[start : start + 500]
        for pair, lines in zip(chunk, ask_llvm([pair.machine() for pair in chunk]), strict=True):
            states = inserted(lines)
            if states != 0:
                one, _, other = pair.name.partition(" > ")
                found.setdefault(one, {})[other] = -1 if states is None else states
    lines = [f"{json.dumps(one)}: {json.dumps(others)}" for one, others in found.items()]
    made_by = json.dumps(f"triton {importlib.metadata.version('triton')}")
    text = ",\n".join(lines)
    RECORD.write_text(f'{{"made_by": {made_by}, "pairs": {len(every)}, "waits": {{\n{text}\n}}}}\n')
    sys.stdout.write(f"{len(every)} pairs, {sum(map(len, found.values()))} with wait states or not reached\n")


if __name__ == "__main__":
    main()
