"""Threads that look after something (csrc/c10d/life/watch.h), under the sanitizers."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, WATCHED


@pytest.mark.parametrize("build", [WATCHED, BOUNDS], ids=lambda build: build.name)
def test_what_begins_is_looked_at(build: programs.Build) -> None:
    program = programs.get("watch_test", build)
    assert "Sanitizer" not in programs.check(program, "all", "1")


def test_negative_control_is_reported() -> None:
    """A watch that forgets late that it was woken sleeps, with something to look after."""
    program = programs.get("watch_test", BOUNDS)
    told = "what began during a look is not seen"
    programs.check_failure(program, "during_a_look", "1", says=told, control="clear_late")
