"""What the benchmark of the CUDA kernels calls, on the host under the execution shim.

A benchmark that measures the wrong bytes, or stops half-way, is noticed here and not on a GPU.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, SHIM_BOUNDS_ALL, Build


@pytest.mark.parametrize("case", ["calls", "places"])
@pytest.mark.parametrize(
    "build", [SHIM, pytest.param(SHIM_BOUNDS_ALL, marks=pytest.mark.release)], ids=lambda b: b.name
)
def test_calls_move_what_they_say(build: Build, case: str) -> None:
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # the shim keeps what streams may still use
    programs.check(programs.get("benchmark_calls_test", build), case, environment=environment)
