"""The table of all operations, and the page that shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from overview import format_overview, main, ratio, read_sweeps, slower

from fastcomm._measure.cases import CASES
from fastcomm._measure.units import parse_size

pytest.importorskip("tabulate")

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("2-ranks-all-operations", "4-ranks-all-operations", "4-ranks-groups")
RESULTS = [ROOT / f"benchmarks/results/cpu-{name}.jsonl" for name in NAMES]
PAGE = (ROOT / "docs/performance.md").read_text()
SIZES = [parse_size(size) for size in ("8", "4K", "256K", "2M", "64M")]
Row = dict[str, Any]


def test_a_ratio_is_that_of_the_least_size_not_below(rows: list[Row]) -> None:
    rows[0]["median_us"] = 100.0
    assert ratio(rows, "all_reduce", 8) == 2.0
    assert ratio(rows, "all_reduce", 9) == 20.0
    assert ratio(rows, "all_reduce", 65537) is None
    assert ratio(rows, "barrier", 0) == 20.0
    assert slower(rows) == []


def test_what_is_slower_is_named(
    rows: list[Row], written: Callable[[str, list[Row]], str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows[2]["median_us"] = 400.0
    assert slower(rows) == [("all_reduce", 65536, 0.5)]
    assert main([written("rows", rows), "--sizes", "8,64K"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "slower: all_reduce of 64 KiB, 2 ranks: 0.50\n"
    lines = [line.replace(" ", "") for line in shown.out.splitlines()]
    assert lines[0] == "|operation|2ranks,8B|2ranks,64KiB|"
    assert lines[2:4] == ["|all_reduce|20.0|0.50|", "|broadcast|20.0|20.0|"]
    assert lines[-1] == "|barrier|10.0|200|20.0|"


def test_the_page_shows_what_was_measured_of_every_operation() -> None:
    sweeps = read_sweeps(RESULTS)
    for sweep, ranks in zip(sweeps, (2, 4), strict=True):
        assert {row["op"] for row in sweep} == set(CASES)
        assert {row["ranks"] for row in sweep} == {ranks}
        assert all(row["checked"] for row in sweep)
    assert format_overview(sweeps, SIZES, "github") in PAGE
    for path in RESULTS:
        assert path.name in PAGE


def test_a_bad_size_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["rows", "--sizes", "8,x"])
    assert ended.value.code == 2 and "not a size: 'x'" in capsys.readouterr().err
