"""fused_all_reduce of ranks as threads, without torch: every byte, norms, data races."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, WATCHED

TEST = "fused_test"


@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_byte(seed: str) -> None:
    programs.check(programs.get(TEST, PLAIN), "all", seed)


def test_in_bounds() -> None:
    programs.check(programs.get(TEST, BOUNDS), "all", "3")


def test_without_race() -> None:
    output = programs.check(programs.get(TEST, WATCHED), "random", "4")
    assert "ThreadSanitizer" not in output


@pytest.mark.parametrize("control", ["weaken_publish", "weaken_wait"])
def test_negative_control_is_reported(control: str) -> None:
    missing = {"FusedAllReduce", "FusedDirect", "GatherShards"}
    for seed in range(
        5, 13
    ):  # which schedule races, and is not covered by others' races, is chance
        output = programs.run(
            programs.get(TEST, WATCHED), "race", str(seed), control=control
        ).stdout
        assert programs.races(output)
        missing = {schedule for schedule in missing if schedule not in output}
        if not missing:
            break
    assert not missing
