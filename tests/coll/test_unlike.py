"""What messages tell of ranks whose calls differ: tests/cpp/unlike_test.cpp checks by itself."""

from __future__ import annotations

from support import programs


def test_calls_in_brief_keep_the_operation_and_the_line() -> None:
    programs.check(programs.get("unlike_test", programs.BOUNDS), "brief")
