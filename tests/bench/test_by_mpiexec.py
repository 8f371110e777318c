"""Ranks that ``mpiexec`` starts. Where there is none, a stand-in does nothing but start them."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.patience import ENDS

from fastcomm.bench import by_mpiexec
from fastcomm.bench.launch import RankError, launch
from fastcomm.bench.rank import Rank
from fastcomm.bench.sweep import SweepOptions, run_sweep

MPIEXEC = """#!{python}
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
MODULE = """import os
class MPI:
    class COMM_WORLD:
        rank, size = int(os.environ["MPI_RANK"]), int(os.environ["MPI_SIZE"])
    Finalize = staticmethod(lambda: None)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpiexec").write_text(MPIEXEC.format(python=sys.executable))
    (tmp_path / "mpiexec").chmod(0o755)
    (tmp_path / "mpi4py.py").write_text(MODULE)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[1]}")


def _sum_of_ranks(rank: Rank, factor: int) -> int:
    assert "FASTCOMM_BENCH_KEY" not in os.environ
    dist.init_process_group("gloo")
    value = torch.tensor([rank.rank * factor])
    dist.all_reduce(value)
    rank.report(f"rank {rank.rank}")
    dist.destroy_process_group()
    return int(value) + rank.rank


def _raise_on_one(rank: Rank) -> None:
    if rank.rank == 1:
        raise ValueError("not today")
    time.sleep(600)


@pytest.mark.usefixtures("stand_in")
def test_ranks_do_what_they_are_told() -> None:
    seen: list[tuple[int, Any]] = []
    results = launch(
        _sum_of_ranks,
        3,
        10,
        timeout_s=ENDS,
        on_message=lambda rank, text: seen.append((rank, text)),
        by_mpiexec=True,
    )
    assert results == [30, 31, 32]
    assert sorted(seen) == [(rank, f"rank {rank}") for rank in range(3)]


@pytest.mark.usefixtures("stand_in")
def test_a_rank_that_raises_ends_all() -> None:
    begun = time.monotonic()
    with pytest.raises(RankError, match="not today"):
        launch(_raise_on_one, 2, timeout_s=ENDS, by_mpiexec=True)
    assert time.monotonic() - begun < ENDS


@pytest.mark.usefixtures("stand_in")
def test_an_mpiexec_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIEXEC_FAILS", "1")
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="mpiexec ended with 7"):
        launch(_sum_of_ranks, 2, 1, timeout_s=ENDS, by_mpiexec=True)
    left = [each for each in set(threading.enumerate()) - before if not each.daemon]
    for each in left:
        each.join(ENDS)
    assert not any(each.is_alive() for each in left), left  # a program could not end


@pytest.mark.skipif(bool(by_mpiexec.missing()), reason=by_mpiexec.missing() or "there")
def test_mpi_is_measured() -> None:
    rows: list[dict[str, Any]] = []
    ops = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "barrier")
    run_sweep(SweepOptions(ops, (64, 100_000), ("fastcomm", "mpi"), budget_s=2), rows.append)
    ours = [row for row in rows if row["backend"] == "mpi"]
    assert len(ours) == 9 and all(row["checked"] for row in ours), ours


@pytest.mark.skipif(not by_mpiexec.missing(), reason="MPI is here")
def test_mpi_that_is_missing_is_left_out() -> None:
    rows: list[dict[str, Any]] = []
    run_sweep(SweepOptions(("all_reduce",), (64,), ("fastcomm", "mpi"), budget_s=1), rows.append)
    (row,) = [row for row in rows if row["backend"] == "mpi"]
    assert row["left_out"] in ("mpi4py is not installed", "there is no mpiexec")
