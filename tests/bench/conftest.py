"""Rows as a sweep makes them, made and measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastcomm.bench.records import RecordWriter
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


@pytest.fixture
def rows() -> list[Row]:
    """Return two operations of two sizes and a barrier, over two backends; the first 20x faster."""
    result = []
    points = [(op, size) for op in ("all_reduce", "broadcast") for size in (8, 65536)]
    for op, size in [*points, ("barrier", 0)]:
        for backend, median in (("fastcomm", 10.0), ("gloo", 200.0)):
            result.append(
                {
                    "op": op,
                    "bytes": size,
                    "dtype": "float32",
                    "ranks": 2,
                    "backend": backend,
                    "iterations": 100,
                    "min_us": median / 2,
                    "median_us": median,
                    "p99_us": median * 3,
                    "mean_us": median,
                    "batch_median_us": [median],
                    "algbw_gbs": size / median / 1e3,
                    "busbw_gbs": size / median / 1e3,
                    "checked": True,
                }
            )
    return result


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, list[Row]], str]:
    """Return what writes rows into a file of some name, and returns its path."""

    def write(name: str, rows: list[Row]) -> str:
        with RecordWriter(tmp_path / name, ["test"]) as writer:
            for row in rows:
                writer.write(row)
        return str(tmp_path / name)

    return write


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
