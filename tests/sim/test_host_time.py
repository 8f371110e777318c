"""The program that times hosts runs; figures come from ``python tests/sim/host_time.py``."""

from __future__ import annotations

import pytest

from sim import host_time

pytestmark = pytest.mark.usefixtures("simulated")


def test_every_operation_is_timed() -> None:
    rows = host_time.measure(calls=20, rounds=2)
    assert {row["message"] for row in rows} == set(host_time.SIZES)
    assert len(rows) == 18 and all(float(row["backend_us"]) > 0 for row in rows), rows
