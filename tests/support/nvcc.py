"""Compile CUDA sources with nvcc, without a GPU: to read what comes out, or to link a test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.shim import ROOT

ARCHITECTURE = "90"
FLAGS = ["-std=c++17", "-fmad=false", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests/cpp'}"]


def find_nvcc() -> str | None:
    """``nvcc`` of CUDA_HOME, of PATH, or of its usual place."""
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    in_places = [shutil.which("nvcc", path=f"{place}/bin") for place in places if place]
    return in_places[0] or shutil.which("nvcc") or in_places[-1]


NVCC = find_nvcc()


def compile_sources(*arguments: str, timeout: float = 280) -> str:
    """Run nvcc with the project's flags; returns what it printed."""
    command = [str(NVCC), *FLAGS, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def ptx_of(source: str, out: Path, *flags: str) -> str:
    """Return the PTX of a source in the repository."""
    target = f"arch=compute_{ARCHITECTURE},code=compute_{ARCHITECTURE}"
    compile_sources("-O3", "-gencode", target, *flags, "-ptx", "-o", str(out), str(ROOT / source))
    return out.read_text()


def link_for_device(
    program: Path, sources: Sequence[str], *flags: str, architecture: str = f"sm_{ARCHITECTURE}"
) -> Path:
    """Compile and link a test of tests/cpp with the kernels it tests; "native" is this GPU's."""
    target = ["-O1", f"-arch={architecture}", "-x", "cu"]
    paths = [str(ROOT / source) for source in sources]
    compile_sources(*target, *flags, *paths, "-o", str(program))
    return program


def ordered_accesses(ptx: str) -> set[str]:
    """Loads and stores that order something or have a scope, and everything atomic."""
    # "bar.red" is a barrier, hence the look behind.
    accesses = re.findall(r"(?<![\w.%$])(?:ld|st|atom|red|fence|membar)\.[\w.:]+", ptx)
    scope = re.compile(r"acquire|release|relaxed|volatile|\.(?:sc|gpu|cta|cluster|sys)\b")
    return {name for name in accesses if scope.search(name) or not name.startswith(("ld", "st"))}


def accesses_of_16_bytes(ptx: str) -> set[str]:
    """Return which of "ld" and "st" move packs."""
    wide = r"\b(ld|st)\.(?:global\.)?(?:v4\.[bu]32|v2\.[bu]64|b128)"
    return set(re.findall(wide, ptx))


def frames(source: str, out: Path, *flags: str) -> list[tuple[int, int]]:
    """Return (bytes of stack, bytes spilled) of every function of a source."""
    target = f"arch=compute_{ARCHITECTURE},code=sm_{ARCHITECTURE}"
    options = ["-O3", "-gencode", target, *flags, "-Xptxas", "-v", "-c", "-o", str(out)]
    printed = compile_sources(*options, str(ROOT / source))
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", printed)
    return [(int(stack), int(spilled)) for stack, spilled in found]
