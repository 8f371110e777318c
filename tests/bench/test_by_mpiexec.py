"""Ranks that ``mpiexec`` starts; test_launch.py has what they do."""

from __future__ import annotations

import threading

import pytest
from peers import by_mpiexec
from support import bench_ranks
from support.patience import ENDS

from fastcomm.bench.launch import StartError, launch


@pytest.mark.usefixtures("mpiexec")
def test_an_mpiexec_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIEXEC_FAILS", "1")
    before = set(threading.enumerate())
    with pytest.raises(StartError, match="mpiexec ended with 7"):
        launch(bench_ranks.sum_over_gloo, 2, timeout_s=ENDS, start=by_mpiexec.start)
    left = [each for each in set(threading.enumerate()) - before if not each.daemon]
    for each in left:
        each.join(ENDS)
    assert not any(each.is_alive() for each in left), left  # a program could not end
