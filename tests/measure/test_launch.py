"""Start, supervision and end of ranks, which a process or mpiexec starts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from peers import by_mpiexec
from support import bench_ranks
from support.patience import ENDS, has_ended, until

from fastcomm._measure.launch import RankError, Start, StartError, launch

pytestmark = pytest.mark.serial  # times are compared


@pytest.fixture(params=["spawned", "by mpiexec"])
def start(request: pytest.FixtureRequest) -> Start | None:
    """Return the argument ``start`` of `launch`; None spawns processes."""
    if request.param == "spawned":
        return None
    request.getfixturevalue("mpiexec")
    return by_mpiexec.start


def test_results_come_in_order_and_messages_arrive(start: Start | None) -> None:
    messages = []
    results = launch(
        *(bench_ranks.add, 3, 10),
        timeout_s=ENDS,
        on_message=lambda *args: messages.append(args),
        start=start,
    )
    assert results == [10, 11, 12]
    assert sorted(messages) == [(rank, f"hello from {rank}") for rank in range(3)]


def test_ranks_can_join_a_group_without_arguments(start: Start | None) -> None:
    assert launch(bench_ranks.sum_over_gloo, 2, timeout_s=ENDS, start=start) == [12.0, 12.0]


def test_an_exception_is_raised_with_its_rank_and_the_rest_is_killed(
    start: Start | None, tmp_path: Path
) -> None:
    folder = tmp_path / "ids"
    folder.mkdir()
    with pytest.raises(RankError, match=r"rank 1: (.|\n)*raise_on_one(.|\n)*planted") as caught:
        launch(bench_ranks.raise_on_one, 2, str(folder), timeout_s=ENDS, start=start)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, ValueError)
    pids = [int(path.read_text()) for path in folder.iterdir()]
    assert len(pids) == 2
    until(lambda: all(map(has_ended, pids)), "the end of the ranks")


def test_the_death_of_a_rank_is_an_error() -> None:
    with pytest.raises(RankError, match=r"rank 1: .*ended with code -9"):
        launch(bench_ranks.die_on_one, 2, timeout_s=ENDS)


def test_a_rank_ends_with_its_threads_and_what_it_registered_for_its_end(
    tmp_path: Path,
) -> None:
    launch(bench_ranks.leave_traces, 1, str(tmp_path), timeout_s=ENDS)
    assert {path.name for path in tmp_path.iterdir()} == {"thread", "atexit"}


def test_time_runs_out() -> None:
    with pytest.raises(RankError, match=r"ranks \[0, 1\] were killed"):
        launch(bench_ranks.sleep, 2, timeout_s=1)


def test_ranks_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    # Rank 0 of `raise_on_one` writes its process id, and sleeps.
    code = (
        "from fastcomm._measure.launch import launch\nfrom support import bench_ranks\n"
        f"launch(bench_ranks.raise_on_one, 1, {str(tmp_path)!r}, timeout_s={ENDS})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    own = tmp_path / "0"
    try:
        until(lambda: (own.exists() and own.read_text()) or parent.poll() is not None, "a rank")
        pid = int(own.read_text())
    finally:
        parent.kill()
        parent.wait()
    until(lambda: has_ended(pid), "the end of a rank whose parent is gone")


@pytest.mark.usefixtures("mpiexec")
def test_an_mpiexec_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIEXEC_FAILS", "1")
    before = set(threading.enumerate())
    with pytest.raises(StartError, match="mpiexec ended with 7"):
        launch(bench_ranks.sum_over_gloo, 2, timeout_s=ENDS, start=by_mpiexec.start)
    left = [each for each in set(threading.enumerate()) - before if not each.daemon]
    until(lambda: not any(map(threading.Thread.is_alive, left)), f"the end of {left}")
