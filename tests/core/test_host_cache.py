"""The cache of large blocks of memory, without torch; plain and under the sanitizers."""

from __future__ import annotations

import pytest
from support import cpp_build

SOURCES = ["csrc/core/error.cpp", "csrc/core/host_cache.cpp", "tests/cpp/host_cache_test.cpp"]


@pytest.mark.parametrize(
    "flags", [cpp_build.PLAIN, cpp_build.TSAN, cpp_build.ASAN], ids=["plain", "tsan", "asan"]
)
def test_host_cache(flags: list[str]) -> None:
    program = cpp_build.build("host_cache_test", SOURCES, flags)
    assert "Sanitizer" not in cpp_build.check(program, "all", "1")
