"""What the compiler makes of the CPU's loops: vector code, in each of them.

A loop that it does not vectorize is right, but ten to fifty times slower. What is read is the
library that ``fastcomm._C`` is linked with, in ``build``.
"""

from __future__ import annotations

import functools
import platform
import re
import shutil
import subprocess
from pathlib import Path

import native_build
import pytest

from fastcomm import _build_info

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or shutil.which("objdump") is None,
    reason="reads x86-64 by objdump",
)

SETS = {"generic": "%xmm", "avx2": "%ymm", "avx512": "%zmm"}
KINDS = ("reduce", "reduce_plain", "gradient", "add_rms_norm")
FEWEST = {"reduce": 301, "reduce_plain": 101, "gradient": 26, "add_rms_norm": 3}
# The loops with FC_LOOP (csrc/kernels/reduce_cpu.h).
LOOPS = (
    *("reduce_direct", "reduce_leaves", "reduce_tiled"),
    *("reduce_floats_direct", "reduce_floats_leaves", "reduce_floats_tiled"),
    *("convert", "convert_with_residual", "add_all", "add_rms_norm_row"),
)
_FUNCTION = re.compile(rf"\b({'|'.join(LOOPS)})<")
# Instructions on one number, though in a vector register.
_SCALAR = re.compile(r"^(v?\w+s[sd]|v?cvt\w*s[sd]\w*|v?mov[dq])$")
_PLACES = re.compile(r"fastcomm::(isa_\w+::)?(\(anonymous namespace\)::)?")
# Without a vector instruction: integer division; in SSE2 comparisons and products of 64 bits.
_DIVISION = re.compile(r"\bi?div[bwlq]?\s")
_WIDE = re.compile(
    r"Plain<(IntegerProduct<unsigned long>|(Integer|Float)Extreme<(unsigned )?(long|double), )"
)


def _object(kind: str, isa: str) -> Path:
    folder = "native-cuda" if _build_info.FLAVOUR == "cuda" else "native-cpu"
    return native_build.ROOT / "build" / folder / "units" / f"{kind}_{isa}.cpp.o"


@functools.cache
def _functions(path: Path) -> dict[str, list[str]]:
    """Return the instructions of each function that is one of LOOPS, by its short name."""
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for part in re.split(r"\n(?=[0-9a-f]{16} <)", text):
        name = re.match(r"[0-9a-f]+ <(.*)>:\n", part)
        if name and _FUNCTION.search(name[1]):
            lines = [line.partition("\t")[2].strip() for line in part.splitlines()[1:]]
            found[_PLACES.sub("", name[1])] = [line for line in lines if line]
    return found


def _in_vectors(instructions: list[str], register: str) -> list[str]:
    """Return what is done with whole registers."""
    return [i for i in instructions if register in i and not _SCALAR.match(i.split()[0])]


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_loop_is_of_vectors(kind: str, isa: str) -> None:
    functions = _functions(_object(kind, isa))
    assert len(functions) >= FEWEST[kind]
    given_up = [
        name
        for name, instructions in functions.items()
        if len(_in_vectors(instructions, SETS[isa])) < 2
        and not any(map(_DIVISION.search, instructions))
        and not (isa == "generic" and _WIDE.search(name))
    ]
    assert not given_up, given_up[:10]


@pytest.mark.parametrize(("isa", "register"), [("avx2", "ymm"), ("avx512", "zmm")])
def test_halves_are_converted_by_instructions_for_it(isa: str, register: str) -> None:
    functions = _functions(_object("reduce", isa))
    sums = {name: i for name, i in functions.items() if "reduce_floats_direct<Half" in name}
    assert len(sums) == 4 * 8 * 2  # what comes before and after; sources; destinations
    for name, instructions in sums.items():
        for conversion in ("vcvtph2ps", "vcvtps2ph"):
            assert any(i.startswith(conversion) and register in i for i in instructions), name


def test_a_loop_that_is_given_up_would_be_seen() -> None:
    scalar = ["vmovss (%rdi,%rax,4),%xmm0", "vaddss (%rsi,%rax,4),%xmm0,%xmm0", "vmovd %xmm0,%eax"]
    assert not _in_vectors(scalar, "%xmm")
    assert len(_in_vectors([*scalar, "vaddps (%rsi),%ymm0,%ymm1"], "%ymm")) == 1
