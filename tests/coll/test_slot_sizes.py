"""Places and sizes of slots, checked by tests/cpp/slot_sizes_test.cpp."""

from __future__ import annotations

import pytest
from support import programs


@pytest.mark.parametrize("case", ["places", "turns", "tuned"])
def test_slot_sizes(case: str) -> None:
    programs.check(programs.get("slot_sizes_test", programs.BOUNDS), case)
