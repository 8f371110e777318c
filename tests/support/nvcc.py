"""What nvcc makes of the CUDA sources, without a GPU: PTX, the assembler's report, linked programs.

No kernel is compiled for these tests alone: the library of the CUDA flavour has all of them, and
what its build leaves beside the objects is read here (tools/native_build.py). Where the installed
flavour has no CUDA, that library is built for one architecture.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import cuda_toolkit  # noqa: E402
import gpu_programs  # noqa: E402
import native_build  # noqa: E402

ARCHITECTURE = "9.0"  # compiled for where the flavour has no CUDA; read where there are several
HOME = cuda_toolkit.find_cuda_home()


def architectures() -> str:
    """Return those of the installed flavour, as in TORCH_CUDA_ARCH_LIST."""
    from fastcomm import _build_info

    return _build_info.CUDA_ARCHITECTURES if _build_info.FLAVOUR == "cuda" else ARCHITECTURE


@functools.cache
def toolkit() -> native_build.Cuda:
    """Return the toolkit, with the architectures of the installed flavour."""
    return native_build.Cuda(str(HOME), cuda_toolkit.gencode_options(architectures()))


@functools.cache
def library() -> Path:
    """Return the layers below torch with CUDA: what the CUDA flavour's ``fastcomm._C`` links."""
    return native_build.build_library(toolkit())


def ptx_of(source: str) -> str:
    """Return the PTX of a source in the repository."""
    found = sorted((library().parent / f"{source}.o.kept").glob("*.ptx"))
    name = f"compute_{ARCHITECTURE.replace('.', '')}"
    return next((path for path in found if name in path.name), found[0]).read_text()


def frames(source: str) -> list[tuple[int, int]]:
    """Return (bytes of stack, bytes spilled) of every function of a source."""
    report = (library().parent / f"{source}.o.log").read_text()
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report)
    return [(int(stack), int(spilled)) for stack, spilled in found]


def programs() -> dict[str, Path]:
    """Return the C++ tests and benchmarks that a GPU runs, for the first architecture."""
    return gpu_programs.ensure(architectures().split(";")[0].removesuffix("+PTX"))


def ordered_accesses(ptx: str) -> set[str]:
    """Return loads and stores that order something or have a scope, and everything atomic."""
    # "bar.red" is a barrier, hence the lookbehind.
    accesses = re.findall(r"(?<![\w.%$])(?:ld|st|atom|red|fence|membar)\.[\w.:]+", ptx)
    scope = re.compile(r"acquire|release|relaxed|volatile|\.(?:sc|gpu|cta|cluster|sys)\b")
    return {name for name in accesses if scope.search(name) or not name.startswith(("ld", "st"))}


def accesses_of_16_bytes(ptx: str) -> set[str]:
    """Return which of "ld" and "st" move packs."""
    wide = r"\b(ld|st)\.(?:global\.)?(?:v4\.[bu]32|v2\.[bu]64|b128)"
    return set(re.findall(wide, ptx))
