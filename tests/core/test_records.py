"""Records of calls, without torch; plain and under the sanitizers."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, WATCHED


@pytest.mark.parametrize("build", [PLAIN, WATCHED, BOUNDS], ids=lambda build: build.name)
def test_records(build: programs.Build) -> None:
    program = programs.get("records_test", build)
    assert "Sanitizer" not in programs.check(program, "all", "1")


def test_places_without_a_stamp_are_read_mixed() -> None:
    program = programs.get("records_test", BOUNDS)
    programs.check_failure(program, "beside", "1", says="were mixed", control="even_stamp")
