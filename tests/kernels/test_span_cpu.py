"""Writes of the CPU executor to near and far cores, checked by tests/cpp/span_cpu_test.cpp."""

from __future__ import annotations

import pytest
from support import programs


@pytest.mark.parametrize("case", ["slots", "sums", "pieces", "copies"])
def test_span_cpu(case: str) -> None:
    programs.check(programs.get("span_cpu_test", programs.BOUNDS), case)
