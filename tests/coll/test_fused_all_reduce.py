"""fused_all_reduce of ranks as threads, without torch: every byte, norms, data races."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, WATCHED, Build

TEST = "fused_test"


@pytest.mark.parametrize(
    ("build", "case", "seed"),
    [(PLAIN, "all", "1"), (PLAIN, "all", "2"), (BOUNDS, "all", "3"), (WATCHED, "random", "4")],
    ids=["plain", "again", "bounds", "watched"],
)
def test_every_byte(build: Build, case: str, seed: str) -> None:
    programs.check(programs.get(TEST, build), case, seed)


@pytest.mark.parametrize("control", ["weaken_publish", "weaken_wait"])
def test_negative_control_is_reported(control: str) -> None:
    unreported = {"FusedAllReduce", "FusedDirect", "GatherShards"}
    program = programs.get(TEST, WATCHED)
    for seed in range(5, 13):  # chance decides which races are reported
        output = programs.run(program, "race", str(seed), control=control).stdout
        assert programs.races(output)
        unreported = {schedule for schedule in unreported if schedule not in output}
        if not unreported:
            break
    assert not unreported
