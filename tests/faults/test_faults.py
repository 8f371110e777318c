"""Random schedules with one random fault each: every rank ends right, or in the right exception.

FC_FAULTS_SEED and FC_FAULTS_SCHEDULES choose others, or more. A failed one is played again by `make
soak ARGS="--replay SEED"`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import ENDS

pytestmark = pytest.mark.serial  # the time to an error is judged; /dev/shm is looked at

SEED = int(os.environ.get("FC_FAULTS_SEED", "1"))
SCHEDULES = int(os.environ.get("FC_FAULTS_SCHEDULES", "40"))
IN_RELEASES = 200


@pytest.mark.slow
@pytest.mark.timeout(2 * ENDS + 20 * max(SCHEDULES, IN_RELEASES))
@pytest.mark.parametrize(
    "schedules", [SCHEDULES, pytest.param(IN_RELEASES, marks=pytest.mark.release)]
)
def test_every_fault_ends_in_the_right_exception(schedules: int) -> None:
    print(f"schedules of the seeds {SEED} to {SEED + schedules - 1}")
    command = ["-m", "faults.soak", "--seed", str(SEED), "--schedules", str(schedules)]
    found = subprocess.run(
        [sys.executable, *command],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=ENDS + 20 * schedules,
    )
    assert found.returncode == 0, found.stdout[-20000:] + found.stderr[-4000:]
    assert f'"schedules": {schedules}' in found.stdout
