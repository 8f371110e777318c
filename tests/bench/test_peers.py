"""Peers that are not torch backends; tests/bench/test_by_mpiexec.py has MPI."""

from __future__ import annotations

import importlib.util
from typing import Any

from fastcomm.bench.sweep import SweepOptions, run_sweep


def test_deepspeed_sums_or_says_why_it_cannot() -> None:
    rows: list[dict[str, Any]] = []
    types = ("float32", "bfloat16", "int32")
    ops = ("all_reduce", "broadcast")
    options = SweepOptions(ops, (4096,), ("deepspeed", "gloo"), dtypes=types, budget_s=1)
    run_sweep(options, rows.append)
    reasons = [row.get("left_out", "") for row in rows if row["backend"] == "deepspeed"]
    assert len(reasons) == len(rows) / 2 == 6
    if importlib.util.find_spec("deepspeed") is None:
        assert all("No module named 'deepspeed'" in reason for reason in reasons)
    else:  # it is built at its first use, where possible
        assert all("DeepSpeed" in reason for reason in reasons if reason), reasons
