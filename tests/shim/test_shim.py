"""What the execution shim says about unordered uses of memory, and what it does not say."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, WATCHED

TEST = "shim_order_test"
CASES = ["shadow", "streams", "kernels", "host", "capture", "queues", "beside", "driver"]


@pytest.mark.parametrize("case", CASES)
def test_order(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case, "3")


def test_the_shim_itself_has_no_data_race() -> None:
    # What the cases above leave unordered is a race; these have none.
    for case in ("shadow", "queues"):
        programs.check(programs.get(TEST, WATCHED), case, "3")
