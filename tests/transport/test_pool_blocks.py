"""Free pieces of memory that peers have mapped: random calls, compared with a plain table."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS


@pytest.mark.parametrize("seed", [str(seed) for seed in range(1, 6)])
def test_any_order_of_calls(seed: str) -> None:
    programs.check(programs.get("pool_blocks_test", BOUNDS), "random", seed)
