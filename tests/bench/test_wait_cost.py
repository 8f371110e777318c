"""The benchmark of waiting: a late peer costs the time of a spin, and little after it."""

from __future__ import annotations

from pathlib import Path

import pytest
import wait_cost

from fastcomm.bench.records import read_records

pytest.importorskip("tabulate")

LONG_SPIN_US = 100_000  # longer than any wait here


def test_a_row_and_its_place_in_the_table() -> None:
    waits = [wait_cost.Wait(begun, begun + 50_000, 10_000) for begun in (0, 100_000)]
    batches = [wait_cost.batch_of(waits, [20_000, 130_000])]
    row = wait_cost.row_of(wait_cost.DEFAULT, 20, False, batches)
    assert (row["calls"], row["share"], row["came_late_us"]) == (2, 0.2, 25.0)
    assert (row["wake_median_us"], row["wake_p99_us"]) == (25.0, 30.0)
    rows = [row, {**row, "spin_us": 200, "share": 0.9}]
    rows += [{**each, "is_busy": True, "wake_median_us": 4000.0} for each in rows]
    table = wait_cost.table(rows, "github")
    assert [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]] == [
        *("0.02", "20 %", "90 %"),
        *("25.0", "25.0", "4000", "4000"),
    ]


@pytest.mark.serial
@pytest.mark.skipif(bool(wait_cost.why_not()), reason=wait_cost.why_not())
def test_a_long_wait_costs_little_but_for_its_spin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["--spins", f"default,{LONG_SPIN_US}", "--late", "200,20000"]
    words += ["--rounds", "1", "--seconds", "0.4", "--json", str(out)]
    assert wait_cost.main(words) == 0
    measured = capsys.readouterr().out
    assert wait_cost.main(["--show", str(out)]) == 0
    assert capsys.readouterr().out == measured
    found = read_records(out).rows
    assert [row["calls"] for row in found] == [500, 500, 20, 20] * 2
    rows = {(row["spin_us"], row["late_us"]): row for row in found if not row["is_busy"]}
    for row in found:
        assert row["wake_median_us"] > 0 and len(row["batch_share"]) == 1
    # What spins burns its core unless others take it; the rest of a long wait is slept.
    burnt = rows[LONG_SPIN_US, 200]["share"]
    assert burnt > 0.5
    assert rows[wait_cost.DEFAULT, 20_000]["share"] < burnt / 3
    assert rows[LONG_SPIN_US, 20_000]["share"] > 2 * rows[wait_cost.DEFAULT, 20_000]["share"]
    # A rank that spins keeps its core from a process that wants it, too.
    beside = {(row["spin_us"], row["late_us"]): row for row in found if row["is_busy"]}
    assert beside[LONG_SPIN_US, 200]["wake_median_us"] < 1000
