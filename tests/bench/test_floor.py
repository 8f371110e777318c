"""The bare program that backends are measured beside."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from fastcomm.bench.sweep import SweepOptions, run_sweep

OPS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")
# In one step, around its limit, and in blocks of which the last is short.
SIZES = (36, 1 << 20, (1 << 20) + 4, 5_000_000)

pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None, reason="the floor has to be compiled: there is no c++"
)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.release), 3])
def test_sums_and_copies_are_right(ranks: int) -> None:
    rows: list[dict[str, Any]] = []
    options = SweepOptions(OPS, SIZES, ("floor",), ranks=ranks, iterations=5)
    run_sweep(options, rows.append)  # compares every element, before and after each measurement
    assert len(rows) >= len(OPS) * (len(SIZES) - 1)
    assert all(row["checked"] and "left_out" not in row for row in rows), rows


def test_a_single_copy_is_right() -> None:
    rows: list[dict[str, Any]] = []
    ops = ("all_reduce", "all_gather_into_tensor", "broadcast")
    options = SweepOptions(ops, SIZES, ("single-copy",), ranks=3, iterations=5)
    run_sweep(options, rows.append)
    refused = [row["left_out"] for row in rows if "left_out" in row]
    if refused and "process_vm_readv" in refused[0]:
        pytest.skip(refused[0])
    assert len(rows) >= len(ops) * (len(SIZES) - 1)
    assert all(row["checked"] and "left_out" not in row for row in rows), rows


def test_what_it_has_not_is_left_out() -> None:
    rows: list[dict[str, Any]] = []
    options = SweepOptions(
        ("all_reduce", "all_to_all_single"), (64,), ("fastcomm", "floor"), dtypes=("bfloat16",)
    )
    run_sweep(options, rows.append)
    reasons = [row["left_out"] for row in rows if row["backend"] == "floor"]
    assert len(reasons) == 2 and all("the floor" in reason for reason in reasons), rows
