"""The table of launches says what the code does."""

from __future__ import annotations

import pytest

from sim import launches

pytestmark = pytest.mark.usefixtures("simulated")


def test_the_table_is_up_to_date() -> None:
    assert launches.TABLE.read_text() == launches.table(), "run: python tests/sim/launches.py"
