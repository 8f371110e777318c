"""How lists are divided among ranks: tests/cpp/list_plan_test.cpp checks by itself."""

from __future__ import annotations

from support import cpp_build


def test_division() -> None:
    sources = ["tests/cpp/list_plan_test.cpp", "csrc/core/error.cpp"]
    cpp_build.check(cpp_build.build("list_plan_test", sources, cpp_build.ASAN), "all")
