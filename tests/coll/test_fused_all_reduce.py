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
    output = programs.run(programs.get(TEST, WATCHED), "race", "5", control=control).stdout
    assert programs.races(output)
    for schedule in ("FusedAllReduce", "FusedDirect", "GatherShards"):
        assert schedule in output, schedule
