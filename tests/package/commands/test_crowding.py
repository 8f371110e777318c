"""Warnings of local ranks that crowd a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from package.machine.test_division import machine
from support.patience import ENDS

from fastcomm._commands.crowding import warnings
from fastcomm._machine import division, topology

EIGHT = machine(8, smt=2)
ALL = range(16)
HALF = [cpu for cpu in EIGHT if cpu.core < 4]


@pytest.mark.parametrize(
    ("ranks", "threads", "cpus", "quota", "said"),
    [
        (None, "8", EIGHT, None, []),  # no local ranks
        ("1", "8", EIGHT, None, []),
        ("2", "4", EIGHT, None, []),
        ("8", "1", EIGHT, 8.0, []),
        ("2", "4,2", EIGHT, None, []),  # of nested levels the first counts
        ("2", "few", EIGHT, None, []),  # OpenMP itself complains
        ("2", "5", EIGHT, None, ["OMP_NUM_THREADS=5: 2 local ranks with 5 threads each for 8 c"]),
        ("4", None, EIGHT, None, ["OMP_NUM_THREADS is not set, and: 4 local ranks with 16 thr"]),
        ("9", "1", EIGHT, None, ["9 local ranks share 8 cores: "]),
        ("9", "2", EIGHT, None, ["9 local ranks share 8 cores: ", "=2: 9 local ranks with 2"]),
        ("2", "4", HALF, None, []),  # bound
        ("2", "6", HALF, None, ["=6: a bound rank with 6 threads for 4 cores; OMP_NUM_THREADS=4"]),
        ("2", "4", EIGHT, 6.0, ["=4: 2 local ranks with 4 threads each, of which the control gro"]),
        ("2", "4", HALF, 6.0, ["the control group lets 6 run at once; OMP_NUM_THREADS=3 fits"]),
        ("4", "1", EIGHT, 2.5, ["the control group lets 2.5 processors run at once, for 4 local"]),
    ],
)
def test_what_is_said(ranks: Any, threads: Any, cpus: Any, quota: Any, said: list[str]) -> None:
    named = {"LOCAL_WORLD_SIZE": ranks, "OMP_NUM_THREADS": threads}
    environment = {name: value for name, value in named.items() if value is not None}
    found = warnings(environment, cpus, ALL, quota)
    assert len(found) == len(said), found
    for line, part in zip(found, said, strict=True):
        assert part in line, found


def test_the_division_of_the_launcher_needs_no_warning() -> None:
    """Whatever the quota, as long as there is a processor for each rank."""
    for ranks in range(1, 9):
        for quota in (None, 8.0, 8.5):
            for share in division.divide(EIGHT, ranks, quota):
                named = {"LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": str(share.threads)}
                bound = [cpu for cpu in EIGHT if cpu.number in share.cpus]
                assert warnings(named, EIGHT, ALL, quota) == []
                assert warnings(named, bound, ALL, quota) == []


def test_env_tells_it_as_a_rank() -> None:
    cores = division.physical_cores(topology.cpus())
    environment = {**os.environ, "LOCAL_WORLD_SIZE": str(cores + 1), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "fastcomm", "env"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=ENDS, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"warning: {cores + 1} local ranks share {cores} core" in done.stdout
