"""The CUDA kernels and what drives them, on a real GPU: programs that run under the shim elsewhere.

The same sources of tests/cpp, compiled by nvcc for the visible device. Ranks are streams that share
it. Every byte is compared inside the programs, with a reference that the host computes.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import gpu, nvcc
from support.programs import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(gpu.WHY_NONE is not None, reason=str(gpu.WHY_NONE)),
    pytest.mark.nvcc,
]


@dataclass(frozen=True)
class Suite:
    """The cases of one program; `short` ones are also run under compute-sanitizer."""

    cases: tuple[str, ...]
    short: tuple[str, ...]


SUITES = {
    "multi_copy": Suite(
        ("alignments", "tables", "exact", "race", "refused", "large"),
        ("alignments", "exact"),
    ),
    "multi_reduce": Suite(
        ("sums", "negative_zeros", "tables", "conversions", "race", "refused", "large"),
        ("race", "negative_zeros"),
    ),
    "multi_gradient": Suite(
        ("sums", "norms", "joins", "long", "special", "tables", "race", "refused", "large"),
        ("race", "norms"),
    ),
    "all_reduce": Suite(("sums", "race", "failures"), ("race",)),
    "device_set": Suite(
        ("verdicts", "meet", "staging", "guard", "errors", "setting", "fork"),
        ("meet", "staging"),
    ),
    "local_collectives": Suite(
        ("direct", "staged", "mixed", "repeated", "race"),
        ("race",),
    ),
    "local_calls": Suite(("warm", "threads", "refused"), ()),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compile all programs, side by side: time on a device is short."""
    folder = tmp_path_factory.mktemp("gpu")

    def build(name: str) -> Path:
        return nvcc.link_for_device(folder / name, f"tests/cpp/shim_{name}_test.cpp")

    nvcc.library()  # with all kernels, for the visible device
    with ThreadPoolExecutor(len(SUITES)) as pool:
        return dict(zip(SUITES, pool.map(build, SUITES), strict=True))


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, suite in SUITES.items() for case in suite.cases]
)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_byte_on_a_device(programs: dict[str, Path], name: str, case: str, seed: str) -> None:
    result = run(programs[name], case, seed, timeout=240)
    assert result.returncode == 0, result.stdout[-6000:]


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, suite in SUITES.items() for case in suite.short]
)
@pytest.mark.parametrize("tool", ["memcheck", "initcheck"])
def test_memory_is_used_as_it_should(
    programs: dict[str, Path], name: str, case: str, tool: str
) -> None:
    sanitizer = shutil.which("compute-sanitizer", path=f"{nvcc.HOME}/bin")
    sanitizer = sanitizer or shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is missing")
    command = (Path(sanitizer), "--tool", tool, "--error-exitcode", "9", str(programs[name]), case)
    result = run(*command, timeout=280)
    assert result.returncode == 0, result.stdout[-6000:]
