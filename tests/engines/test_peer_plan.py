"""Plans of operations between devices keep all links at work: a model whose time is counted."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM

CASES = [
    *("all_gather", "all_to_all", "gather_shards", "pulled_results", "broadcast"),
    "pushes_begin_at_their_rank",
]


@pytest.mark.parametrize("case", CASES)
def test_no_link_is_in_the_way(case: str) -> None:
    """2 to 16 ranks; at most 1.1 times the time that the links need.

    A broadcast in slices takes the time of two messages, whatever the number of ranks.
    """
    programs.check(programs.get("peer_plan_test", SHIM), case)
