import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import bench_ranks
from support.patience import ENDS

from fastcomm.bench.launch import RankError, launch

pytestmark = pytest.mark.serial  # times are compared


def is_running(pid: int) -> bool:
    """Tell whether the process exists and is not a zombie that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_results_come_in_order_and_messages_arrive() -> None:
    messages = []
    results = launch(
        bench_ranks.add, 2, 10, timeout_s=ENDS, on_message=lambda *args: messages.append(args)
    )
    assert results == [10, 11]
    assert sorted(messages) == [(rank, f"hello from {rank}") for rank in range(2)]


def test_ranks_can_join_a_group_without_arguments() -> None:
    assert launch(bench_ranks.sum_over_gloo, 2, timeout_s=ENDS) == [12.0, 12.0]


def test_an_exception_is_raised_with_its_rank_and_the_rest_is_killed(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"rank 1: (.|\n)*raise_on_one(.|\n)*planted") as caught:
        launch(bench_ranks.raise_on_one, 2, str(tmp_path), timeout_s=ENDS)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, ValueError)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


def test_the_death_of_a_rank_is_an_error() -> None:
    with pytest.raises(RankError, match=r"rank 1: .*ended with code -9"):
        launch(bench_ranks.die_on_one, 2, timeout_s=ENDS)


def test_a_rank_ends_with_its_threads_and_without_the_end_of_the_interpreter(
    tmp_path: Path,
) -> None:
    launch(bench_ranks.leave_traces, 1, str(tmp_path), timeout_s=ENDS)
    assert [path.name for path in tmp_path.iterdir()] == ["thread"]


def test_time_runs_out() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match=r"ranks \[0, 1\] were killed"):
        launch(bench_ranks.sleep, 2, timeout_s=1)
    assert time.monotonic() - start < ENDS


def test_ranks_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "from fastcomm.bench.launch import launch\nfrom support import bench_ranks\n"
        f"launch(bench_ranks.raise_on_one, 1, {str(tmp_path)!r}, timeout_s={ENDS})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        deadline = time.monotonic() + ENDS
        while not (tmp_path / "0").exists() or not (tmp_path / "0").read_text():
            assert time.monotonic() < deadline and parent.poll() is None
            time.sleep(0.05)
        pid = int((tmp_path / "0").read_text())
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + ENDS
    while is_running(pid):
        assert time.monotonic() < deadline, "the rank outlived its parent"
        time.sleep(0.05)
