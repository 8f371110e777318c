"""The cache of large blocks of memory, without torch; plain and under the sanitizers."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, WATCHED


@pytest.mark.parametrize("build", [PLAIN, WATCHED, BOUNDS], ids=lambda build: build.name)
def test_host_cache(build: programs.Build) -> None:
    program = programs.get("host_cache_test", build)
    assert "Sanitizer" not in programs.check(program, "all", "1")
