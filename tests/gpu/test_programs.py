"""The CUDA kernels and what drives them, on a real GPU: programs that run under the shim elsewhere.

The sources of tests/cpp, compiled by nvcc for the visible device, here or elsewhere
(tools/gpu_programs.py). Ranks are streams that share the device (processes: test_peers.py). Every
byte is compared inside the programs, with a reference that the host computes.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import gpu, nvcc, programs
from support.patience import ENDS

pytestmark = pytest.mark.gpu


SANITIZED = ENDS  # seconds for one program under the sanitizer


@dataclass(frozen=True)
class Suite:
    """The cases of one program; `short` ones are also run under compute-sanitizer.

    Those use the device from beginning to end: the tool calls a program without a kernel an error,
    and may let one kernel wait for another that it starts after it.
    """

    cases: tuple[str, ...]
    short: tuple[str, ...]


SUITES = {
    "multi_copy": Suite(
        ("alignments", "tables", "race", "refused", "large"),
        ("tables", "race"),
    ),
    "multi_reduce": Suite(
        ("sums", "negative_zeros", "tables", "conversions", "race", "refused", "large"),
        ("race", "negative_zeros"),
    ),
    "multi_combine": Suite(
        ("bits", "tables", "failed", "race", "refused"),
        ("race", "tables"),
    ),
    "multi_gradient": Suite(
        (
            *("sums", "norms", "joins", "long", "special", "tables", "race", "race_alone"),
            *("refused", "large"),
        ),
        ("race", "norms"),
    ),
    "device_set": Suite(
        ("verdicts", "meet", "staging", "errors", "setting", "fork"),
        ("meet",),
    ),
    "exchange": Suite(
        ("direct", "staged", "repeated", "threads", "refused"),
        ("repeated",),
    ),
}


@pytest.fixture(scope="module")
def sanitizer() -> str:
    """Return compute-sanitizer, if it can look at this device."""
    found = shutil.which("compute-sanitizer", path=f"{nvcc.HOME}/bin")
    found = found or shutil.which("compute-sanitizer")
    if found is None:
        pytest.skip("compute-sanitizer is missing")
    try:
        result = _sanitized(found, "memcheck", "device_set", "meet")
    except subprocess.TimeoutExpired:
        pytest.skip(f"compute-sanitizer needs more than {SANITIZED:.0f} s for the smallest program")
    if result.returncode != 0 and (refusal := gpu.sanitizer_refusal(result.stdout)):
        pytest.skip(f"compute-sanitizer: {refusal}")
    return found


def _sanitized(sanitizer: str, tool: str, name: str, case: str) -> subprocess.CompletedProcess[str]:
    # Programs check the result of every call themselves, and some calls are meant to fail.
    options = ("--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no")
    program = str(gpu.programs()[name])
    return programs.run(Path(sanitizer), *options, program, case, timeout=SANITIZED)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, suite in SUITES.items() for case in suite.cases]
)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_byte_on_a_device(name: str, case: str, seed: str) -> None:
    programs.check(gpu.programs()[name], case, seed, timeout=ENDS)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, suite in SUITES.items() for case in suite.short]
)
@pytest.mark.parametrize("tool", ["memcheck", "initcheck"])
def test_memory_is_used_as_it_should(sanitizer: str, name: str, case: str, tool: str) -> None:
    result = _sanitized(sanitizer, tool, name, case)
    assert result.returncode == 0, result.stdout[-6000:]
