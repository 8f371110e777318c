"""Copies to where peers read them: tests/cpp/stage_copy_test.cpp checks by itself."""

from __future__ import annotations

from support import programs


def test_stage_copy() -> None:
    programs.check(programs.get("stage_copy_test", programs.BOUNDS), "copies")
