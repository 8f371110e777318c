"""SASS that the assembler makes of the kernels' PTX: what a GPU runs, read without one."""

from __future__ import annotations

import re

import pytest
from support import nvcc

COPYING = [f"csrc/kernels/cuda/{name}.cu" for name in ("multi_copy", "multi_gradient")]
REDUCING = [
    f"csrc/kernels/cuda/{name}.cu" for name in ("multi_reduce", "indirect_reduce", "multi_combine")
]
WAITING = [
    f"csrc/engines/cuda/{name}.cu" for name in ("short", "short_combine", "meeting", "pairs")
]
PROBE = "csrc/devices/peer_probe.cu"
pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(
        nvcc.find_disassembler() is None,
        reason="nvdisasm is missing: pip install nvidia-cuda-nvdisasm",
    ),
]
every = pytest.mark.parametrize("source", [*COPYING, *REDUCING, *WAITING])
waiting = pytest.mark.parametrize("source", [*WAITING, PROBE])


def _instructions(sass: str) -> list[str]:
    """Return names of instructions, their predicates and operands, in order."""
    return re.findall(r"^\s*/\*\w+\*/\s+(\S.*?)\s*;", sass, re.MULTILINE)


def _names(sass: str) -> set[str]:
    return {re.sub(r"^@\S+\s+", "", each).split()[0] for each in _instructions(sass)}


@every
def test_nothing_lies_in_local_memory(source: str) -> None:
    assert not {name for name in _names(nvcc.sass_of(source)) if re.match(r"(?:LDL|STL)\b", name)}


@every
def test_memory_is_addressed_as_global(source: str) -> None:
    """Nor is any of it read through the path of constants: peers write."""
    names = _names(nvcc.sass_of(source))
    assert not {name for name in names if re.match(r"(?:LD|ST|ATOM|RED)\.", name)}
    assert not {name for name in names if name.startswith("LDG") and "CONSTANT" in name}


@pytest.mark.parametrize("source", [*COPYING, *REDUCING, *WAITING[:2]])
def test_data_moves_in_packs_of_16_bytes(source: str) -> None:
    assert {"LDG.E.128", "STG.E.128"} <= _names(nvcc.sass_of(source))


# All that may stand between a barrier of memory and the store that it is for.
BETWEEN = re.compile(
    r"\s*/\*\w+\*/\s+(?:@\S+\s+)?(?:ERRBAR|CGAERRBAR|I?MOV|IMAD|IADD|LEA|S2|U?LDC)"
)


@waiting
def test_flags_are_stored_behind_a_barrier_of_the_system(source: str) -> None:
    """What the thread has done before is visible by then, to every device and to the host."""
    lines = nvcc.sass_of(source).splitlines()
    flags = [at for at, line in enumerate(lines) if re.search(r"\bSTG\.\S*STRONG", line)]
    assert flags
    for at in flags:
        before = at - 1
        while BETWEEN.match(lines[before]):
            before -= 1
        assert re.search(r"\bMEMBAR\.(?:ALL|SC)\.SYS\b", lines[before]), lines[before : at + 1]
        assert "STRONG.SYS" in lines[at]


@waiting
def test_polls_acquire_nothing_and_back_off(source: str) -> None:
    sass = nvcc.sass_of(source)
    polling = [loop for loop in nvcc.innermost_loops(sass, nvcc.SASS) if "NANOSLEEP" in loop]
    assert len(polling) == sum("NANOSLEEP" in each for each in _instructions(sass)) > 0
    for loop in polling:
        assert "LDG.E.STRONG.SYS" in loop
        assert not re.search(r"\b(?:CCTL|MEMBAR)\b", loop), loop
    assert "CCTL.IVALL" in sass, "an acquire drops what the first-level cache holds"
