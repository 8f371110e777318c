"""Placement of ranks on hosts, checked by tests/cpp/host_layout_test.cpp."""

from __future__ import annotations

import pytest
from support import programs


@pytest.mark.parametrize("case", ["placements", "places", "subtrees", "oddities"])
def test_layout(case: str) -> None:
    programs.check(programs.get("host_layout_test", programs.BOUNDS), case)
