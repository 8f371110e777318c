"""Sweeps, and a stand-in for mpiexec to start their ranks: fixtures of several folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastcomm.bench.sweep import SweepOptions, run_sweep

Row = dict[str, Any]

# Where there is no mpiexec, this does nothing but start ranks.
MPIEXEC = f"""#!{sys.executable}
import os, subprocess, sys
size = int(sys.argv[sys.argv.index("-n") + 1])
command = sys.argv[sys.argv.index("-n") + 2:]
if os.environ.get("MPIEXEC_FAILS"):
    sys.exit(7)
ranks = [
    subprocess.Popen(command, env={{**os.environ, "MPI_RANK": str(r), "MPI_SIZE": str(size)}})
    for r in range(size)
]
sys.exit(max(rank.wait() for rank in ranks))
"""
MPI4PY = """import os
class MPI:
    class COMM_WORLD:
        rank, size = int(os.environ["MPI_RANK"]), int(os.environ["MPI_SIZE"])
    Finalize = staticmethod(lambda: None)
"""


@pytest.fixture(scope="session")
def sweep() -> Callable[..., list[Row]]:
    """Return what measures operations of some sizes over some backends."""

    def measured(
        ops: tuple[str, ...], sizes: tuple[int, ...], backends: tuple[str, ...], **options: Any
    ) -> list[Row]:
        found: list[Row] = []
        run_sweep(SweepOptions(ops, sizes, backends, **options), found.append)
        return found

    return measured


@pytest.fixture
def mpiexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stand-in be found for ``mpiexec`` and ``mpi4py``."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    (folder / "mpiexec").write_text(MPIEXEC)
    (folder / "mpiexec").chmod(0o755)
    (folder / "mpi4py.py").write_text(MPI4PY)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(folder))
