"""Rows as a sweep makes them, made and measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.measured import forked
from support.sweeps import mpiexec, sweep

from fastcomm.bench.records import RecordWriter

__all__ = ["forked", "mpiexec", "sweep"]

Row = dict[str, Any]


@pytest.fixture
def rows() -> list[Row]:
    """Return two operations of two sizes and a barrier, over two backends; the first 20x faster."""
    result = []
    points = [(op, size) for op in ("all_reduce", "broadcast") for size in (8, 65536)]
    for op, size in [*points, ("barrier", 0)]:
        for backend, median in (("fastcomm", 10.0), ("gloo", 200.0)):
            result.append(
                {
                    "op": op,
                    "bytes": size,
                    "dtype": "float32",
                    "ranks": 2,
                    "backend": backend,
                    "iterations": 100,
                    "min_us": median / 2,
                    "median_us": median,
                    "p99_us": median * 3,
                    "mean_us": median,
                    "batch_median_us": [median],
                    "algbw_gbs": size / median / 1e3,
                    "busbw_gbs": size / median / 1e3,
                    "checked": True,
                }
            )
    return result


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, list[Row]], str]:
    """Return what writes rows into a file of some name, and returns its path."""

    def write(name: str, rows: list[Row]) -> str:
        with RecordWriter(tmp_path / name, ["test"]) as writer:
            for row in rows:
                writer.write(row)
        return str(tmp_path / name)

    return write
