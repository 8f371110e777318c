"""benchmarks/reduce_loops.py compiles, measures every case, and says where a claim is broken."""

from __future__ import annotations

from types import ModuleType

import pytest
from support import script


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    return script.load("reduce_loops")


def test_every_case_is_measured(loops: ModuleType) -> None:
    rows = loops.measure(loops.build(), "generic", samples=2, nbytes=32 * 1024)
    sums = [row for row in rows if row.kind == "sum"]
    assert len(sums) == 7 * 8 * 2  # types, sources, destinations
    assert {row.kind for row in rows} > {"avg", "scaled", "max", "narrow", "feedback", "norm-2"}
    assert all(row.us > 0 and row.by_hand is None for row in rows)
    with pytest.raises(RuntimeError, match="FASTCOMM_ISA"):
        loops.measure(loops.build(), "none", samples=2)


def test_what_is_too_slow_is_named(loops: ModuleType) -> None:
    rows = [
        loops.Times("sum", "float16", 2, 2, 12.0, 10.0),
        loops.Times("narrow", "bfloat16", 1, 1, 13.0, 10.0),
        loops.Times("norm-2", "float32", 1, 0, 5.0, None),
        loops.Times("norm-2", "bfloat16", 1, 0, 16.0, None),
    ]
    assert loops.broken("avx512", rows) == [
        "narrow of 1 bfloat16 to 1: 1.30",
        "norm-2 of bfloat16: 1.60 of fp32",
    ]
    assert loops.broken("avx2", rows) == ["narrow of 1 bfloat16 to 1: 1.30"]
