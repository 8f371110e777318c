"""Limits of messages between hosts, checked by tests/cpp/host_thresholds_test.cpp."""

from __future__ import annotations

import pytest
from support import programs


@pytest.mark.parametrize("case", ["tuned", "chunks", "told"])
def test_thresholds(case: str) -> None:
    programs.check(programs.get("host_thresholds_test", programs.BOUNDS), case)
