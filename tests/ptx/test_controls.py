"""PTX with one thing changed: each change is reported by at least one test of test_kernels.py.

The rest is shown by small kernels of their own: what is not understood is an error that names it,
and an access that a device would refuse ends the program, with kernel, instruction and address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from ptx import build
from support import programs

pytestmark = pytest.mark.nvcc


@dataclass(frozen=True)
class Control:
    """A change of all places in a file of PTX that match, and the case that must report it."""

    file: str
    pattern: str
    instead: str
    program: str
    case: str
    build: str = build.TURNS
    says: str = ": not true: "


RACE = {"build": build.WATCHED, "says": "ThreadSanitizer: data race"}
AT_ONCE = ("peer_threads", "at_once")
ROUNDS = ("peer_threads", "rounds")
CONTROLS = {
    "another operation": Control("short", r"add\.rn\.f32", "sub.rn.f32", *AT_ONCE),
    "another operand": Control(
        "multi_copy",
        r"(st\.global\.v4\.u32 .*\{)(%r\d+), (%r\d+)",
        r"\1\3, \2",
        "multi_copy",
        "race",
    ),
    "half of a pack": Control(
        *("multi_copy", r"st\.global\.v4\.u32 (.*\{%r\d+, %r\d+), .*\}", r"st.global.v2.u32 \1}"),
        *("multi_copy", "tables"),
    ),
    "a word instead of an address": Control(
        *("multi_copy", r"ld\.param\.u64", "ld.param.u32", "multi_copy", "tables"),
        says="outside of any allocation",
    ),
    "one too many": Control(
        *("multi_copy", r"setp\.ge\.u64", "setp.gt.u64", "multi_copy", "race"),
        says="which is not aligned",
    ),
    "a predicate turned": Control(
        *("multi_copy", r"@(%p\d+) bra", r"@!\1 bra", "multi_copy", "race"),
        says="outside of any allocation",
    ),
    "an address off by one": Control(
        *("multi_copy", r"(ld(?:\.global)?\.v4\.u32 .*\[%rd\d+)(\+\d+)?\]", r"\1+4]"),
        *("multi_copy", "race"),
        says="which is not aligned",
    ),
    "a flag that nothing orders": Control(
        "short", r"st\.release\.sys\.global", "st.relaxed.sys.global", *AT_ONCE, **RACE
    ),
    "a wait that orders nothing": Control(
        "short", r"ld\.acquire\.sys\.global", "ld.relaxed.sys.global", *AT_ONCE, **RACE
    ),
    "a flag for one device": Control(
        "short", r"st\.release\.sys", "st.release.gpu", *AT_ONCE, **RACE
    ),
    "a wait for one device": Control(
        "meeting", r"ld\.acquire\.sys", "ld.acquire.gpu", *ROUNDS, **RACE
    ),
    "a flag written as data": Control(
        "short", r"st\.release\.sys\.global", "st.global", *AT_ONCE, **RACE
    ),
    "no barrier": Control("short", r"bar\.sync\s+0;", "", *AT_ONCE, **RACE),
    "two blocks do the same": Control(
        "multi_copy", r"%ctaid\.x", "0", "multi_copy", "race", **RACE
    ),
    "no barrier among those who sum up": Control(
        "multi_gradient", r"bar\.sync\s+0;", "", "multi_gradient", "race_alone", **RACE
    ),
    "no barrier behind the wait": Control(
        "short", r"bar\.red\.and\.pred\s+(%p\d+), 0, (%p\d+)", r"mov.pred \1, \2", *AT_ONCE, **RACE
    ),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_change_is_reported(name: str, tmp_path: Path) -> None:
    control = CONTROLS[name]
    source = next(path for path in build.ptx_files() if path.name == f"{control.file}.ptx")
    text, count = re.subn(control.pattern, control.instead, source.read_text())
    assert count > 0, "there is nothing to change"
    changed = tmp_path / source.name
    changed.write_text(text)
    program = build.program(control.program, control.build)
    environment = build.environment(changed=changed)
    environment["TSAN_OPTIONS"] += " halt_on_error=1"
    programs.check_failure(program, control.case, "1", says=control.says, environment=environment)


def _kernel(body: str, registers: str = "") -> str:
    """Return a kernel that has the address of an array in %rd1."""
    return f""".version 9.0
.target sm_90
.address_size 64
.visible .entry alone(.param .u64 alone_param_0)
{{
  .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>;
  {registers}
  ld.param.u64 %rd1, [alone_param_0];
  {body}
  ret;
}}
"""


def _run(tmp_path: Path, text: str, *words: int, threads: int = 1) -> tuple[int, str]:
    file = tmp_path / "alone.ptx"
    file.write_text(text)
    numbers = map(str, words)
    result = programs.run(build.program("check"), str(file), "alone", str(threads), *numbers)
    return result.returncode, result.stdout


UNKNOWN = {
    "add.cc.s32 %r1, %r2, %r3;": "instruction 'add.cc.s32'",
    "fence.acq_rel.sys;": "instruction 'fence.acq_rel.sys'",
    "ld.global.nc.u32 %r1, [%rd1];": "modifiers of 'ld.global.nc.u32",
    "ld.acquire.cluster.global.u32 %r1, [%rd1];": "scope 'cluster'",
    "st.acquire.sys.global.u32 [%rd1], %r1;": "order 'st.acquire",
    "ld.global.b128 %rd2, [%rd1];": "modifiers of 'ld.global.b128",
    "mov.u32 %r1, %tid.y;": "operand '%tid.y'",
    "mov.u32 %r9, 1;": "operand '%r9'",
    "bar.sync 1;": "operands 'bar.sync 1'",
    "bra nowhere;": "label 'nowhere'",
    ".local .align 4 .b8 depot[16];": "directive '.local'",
    "vote.sync.any.pred %p1, %p2, -1;": "instruction 'vote.sync.any.pred'",
}


@pytest.mark.parametrize("statement", UNKNOWN)
def test_an_unknown_thing_is_named(statement: str, tmp_path: Path) -> None:
    code, output = _run(tmp_path, _kernel(statement), 0)
    assert code == 1 and UNKNOWN[statement] in output and "of alone" in output, output


VIOLATIONS = {
    "ld.global.u32 %r1, [%rd1+2];": "read of 4 bytes at",
    "st.global.v2.u32 [%rd1+4], {%r1, %r1};": "which is not aligned",
    "ld.global.u64 %rd2, [%rd1+16];": "outside of any allocation",
    "st.global.u64 [%rd1+-8], %rd1;": "outside of any allocation",
    "ld.u64 %rd2, [%rd1+4096];": "outside of any allocation and of the parameters",
    "ld.param.u64 %rd2, [alone_param_0+8];": "outside of any allocation and of the parameters",
    "ld.shared.u32 %r1, [inside+16];": "outside of the variables of shared memory",
}


@pytest.mark.parametrize("statement", VIOLATIONS)
def test_a_bad_access_ends_the_program(statement: str, tmp_path: Path) -> None:
    shared = ".shared .align 4 .b8 inside[16];"
    code, output = _run(tmp_path, _kernel(statement, shared), 1, 2)
    assert code == -6, output
    for part in (VIOLATIONS[statement], statement[:-1], "thread 0 of block 0", "kernel alone"):
        assert part in output, output


ARITHMETIC = {
    "add.u32 %r3, %r1, %r2;": (7, 2**32 - 3, 4),
    "sub.s32 %r3, %r1, %r2;": (1, 2, 2**32 - 1),
    "div.s32 %r3, %r1, %r2;": (2**32 - 7, 2, 2**32 - 3),
    "div.u32 %r3, %r1, %r2;": (7, 0, 2**32 - 1),
    "min.s32 %r3, %r1, %r2;": (2**32 - 1, 1, 2**32 - 1),
    "shr.s32 %r3, %r1, %r2;": (2**31, 40, 2**32 - 1),
    "shl.b32 %r3, %r1, %r2;": (1, 32, 0),
    "prmt.b32 %r3, %r1, %r2, 0x8246;": (0x80224466, 0x11335577, 0x00227733),
    "shf.r.wrap.b32 %r3, %r1, %r2, 40;": (0x11223344, 0x55667788, 0x88112233),
    "bfi.b32 %r3, %r1, %r2, 4, 8;": (0xAB, 0xFFFFFFFF, 0xFFFFFABF),
    "cvt.s32.s8 %r3, %r1;": (0x80, 0, 0xFFFFFF80),
    "{ .reg .pred %p1; mov.pred %p1, -1; selp.b32 %r3, %r1, %r2, %p1; }": (5, 6, 5),
    "{ .reg .f32 %f1; mov.b32 %f1, %r1; add.rn.f32 %f1, %f1, %f1; mov.b32 %r3, %f1; }": (
        *(0xFFC12345, 0, 0x7FFFFFFF),
    ),
    "@%p1 mov.u32 %r3, 1;\n  setp.lt.s32 %p1, %r1, %r2;\n  @!%p1 mov.u32 %r3, 2;": (3, 3, 2),
}


@pytest.mark.parametrize("statement", ARITHMETIC)
def test_an_instruction(statement: str, tmp_path: Path) -> None:
    first, second, expected = ARITHMETIC[statement]
    body = f"""mov.u32 %r3, 0; setp.ne.s32 %p1, 0, 0;
  ld.global.u32 %r1, [%rd1]; ld.global.u32 %r2, [%rd1+8];
  {statement}
  st.global.u32 [%rd1+16], %r3;"""
    assert _run(tmp_path, _kernel(body), first, second, 0) == (
        0,
        f"{first}\n{second}\n{expected}\n",
    )
