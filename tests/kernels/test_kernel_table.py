"""The committed table of CUDA kernels names the kernels that the sources define."""

from __future__ import annotations

import subprocess
import sys

from support.programs import ROOT


def test_table_names_the_kernels_of_the_sources() -> None:
    command = [sys.executable, str(ROOT / "tools" / "kernel_table.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
