"""The sets of instructions that FASTCOMM_ISA chooses among, and what a processor needs for each."""

from __future__ import annotations

from pathlib import Path

import pytest

NEEDED = {"generic": set(), "avx2": {"avx2", "f16c"}}
NEEDED["avx512"] = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c"}


def skip_unless_it_runs(isa: str) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    if not NEEDED[isa] <= flags:
        pytest.skip(f"this processor has no {isa}")
