"""What nvcc makes of the CUDA all_reduce: the scope of flags, wide accesses, no local memory.

One GPU cannot show that a flag of device scope is wrong between two, and none is needed to read
it. Skipped without nvcc.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.shim import ROOT

ARCHITECTURE = "90"


def find_nvcc() -> str | None:
    """``nvcc`` of CUDA_HOME, of PATH, or of its usual place."""
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    in_places = [shutil.which("nvcc", path=f"{place}/bin") for place in places if place]
    return in_places[0] or shutil.which("nvcc") or in_places[-1]


NVCC = find_nvcc()
pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is missing: no PTX to look at")


def compile_kernels(*flags: str) -> str:
    """Compile all_reduce.cu for one architecture; returns what the compiler printed."""
    command = [str(NVCC), "-O3", "-fmad=false", "-std=c++17", f"-I{ROOT / 'csrc'}", "-gencode"]
    command += [*flags, str(ROOT / "csrc/coll/cuda/all_reduce.cu")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("ptx") / "all_reduce.ptx"
    target = f"arch=compute_{ARCHITECTURE},code=compute_{ARCHITECTURE}"
    compile_kernels(target, "-DFC_FEW_KERNELS", "-ptx", "-o", str(out))
    return out.read_text()


def test_flags_have_system_scope(ptx: str) -> None:
    # Loads and stores that order something, and everything atomic; "bar.red" is a barrier.
    accesses = re.findall(r"(?<![\w.%$])(?:ld|st|atom|red|fence|membar)\.[\w.:]+", ptx)
    scope = re.compile(r"acquire|release|relaxed|volatile|\.(?:sc|gpu|cta|cluster|sys)\b")
    ordered = [name for name in accesses if scope.search(name) or not name.startswith(("ld", "st"))]
    assert set(ordered) == {
        "ld.acquire.sys.global.u32",
        "st.release.sys.global.u32",
        "ld.relaxed.sys.global.u32",  # the abort word, which orders nothing
    }


def test_data_moves_in_packs_of_16_bytes(ptx: str) -> None:
    for access in ("ld", "st"):
        assert re.search(rf"\b{access}\.(?:global\.)?(?:v4\.[bu]32|v2\.[bu]64|b128)", ptx), access


def test_data_is_not_read_through_the_read_only_path(ptx: str) -> None:
    assert "ld.global.nc" not in ptx, "a destination may be a source, and peers write"


def test_no_product_is_contracted_into_a_sum(ptx: str) -> None:
    # A division by a constant is made of fused operations, correctly rounded; sums are not.
    assert re.search(r"\badd\.rn\.f32\b", ptx)
    assert not re.search(r"\bdiv\.(?:approx|full)", ptx)


@pytest.mark.parametrize(
    ("kernels", "least"),
    [
        pytest.param(["-DFC_FEW_KERNELS"], 8, id="few"),
        pytest.param([], 140, id="all", marks=pytest.mark.slow),
    ],
)
def test_kernels_use_no_local_memory(tmp_path: Path, kernels: list[str], least: int) -> None:
    """An array that is indexed at run time, copied off the parameters, would lie there."""
    target = f"arch=compute_{ARCHITECTURE},code=sm_{ARCHITECTURE}"
    out = str(tmp_path / "all_reduce.o")
    printed = compile_kernels(target, *kernels, "-Xptxas", "-v", "-c", "-o", out)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", printed)
    assert len(frames) >= least, printed
    assert set(frames) == {("0", "0")}, printed
