"""Division of lists among ranks, checked by tests/cpp/list_plan_test.cpp."""

from __future__ import annotations

from support import programs


def test_division() -> None:
    programs.check(programs.get("list_plan_test", programs.BOUNDS), "all")
