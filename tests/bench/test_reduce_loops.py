"""benchmarks/reduce_loops.py compiles, measures every case, and says where a claim is broken."""

from __future__ import annotations

import pytest
import reduce_loops


def test_every_case_is_measured() -> None:
    rows = reduce_loops.measure(reduce_loops.build(), "generic", samples=2, nbytes=32 * 1024)
    sums = [row for row in rows if row.kind == "sum"]
    assert len(sums) == 7 * 8 * 2  # types, sources, destinations
    assert {row.kind for row in rows} > {"avg", "scaled", "max", "narrow", "feedback", "norm-2"}
    assert all(row.us > 0 and row.by_hand is None for row in rows)
    with pytest.raises(RuntimeError, match="FASTCOMM_ISA"):
        reduce_loops.measure(reduce_loops.build(), "none", samples=2)


def test_what_is_too_slow_is_named() -> None:
    rows = [
        reduce_loops.Times("sum", "float16", 2, 2, 12.0, 10.0),
        reduce_loops.Times("narrow", "bfloat16", 1, 1, 13.0, 10.0),
        reduce_loops.Times("norm-2", "float32", 1, 0, 5.0, None),
        reduce_loops.Times("norm-2", "bfloat16", 1, 0, 16.0, None),
    ]
    assert reduce_loops.broken("avx512", rows) == [
        "narrow of 1 bfloat16 to 1: 1.30",
        "norm-2 of bfloat16: 1.60 of fp32",
    ]
    assert reduce_loops.broken("avx2", rows) == ["narrow of 1 bfloat16 to 1: 1.30"]
