import copy
from collections.abc import Callable
from typing import Any

import pytest

from fastcomm.bench.compare import main

pytest.importorskip("tabulate")

Row = dict[str, Any]
Write = Callable[[str, list[Row]], str]


def test_a_planted_regression_is_found(
    written: Write, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    slower = copy.deepcopy(rows)
    slower[2]["median_us"] *= 1.5
    old, new = written("old", rows), written("new", slower)
    assert main([old, old]) == 0
    assert main([new, old]) == 0  # faster is no regression
    assert main([old, new, "--threshold", "1.6"]) == 0
    capsys.readouterr()
    assert main([old, new]) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("slower"))
    assert " ".join(line.split()) == "all_reduce 64 KiB fastcomm 10.000 15.000 1.50 slower"


def test_several_files_are_compared_with_the_first(
    written: Write, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, factor in (("a", 1.0), ("b", 1.1), ("c", 2.0)):
        of_file = copy.deepcopy(rows)
        of_file[0]["median_us"] *= factor
        paths.append(written(name, of_file))
    assert main(paths[:2]) == 0 and main(paths) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"C: {paths[2]}" in lines
    assert any("B / A" in line and "C / A" in line for line in lines)
    (line,) = (line for line in lines if line.endswith("slower"))
    assert line.split()[-6:] == ["10.000", "11.000", "20.000", "1.10", "2.00", "slower"]


def test_a_file_that_is_none_is_status_2(
    written: Write, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([written("a", rows), "none"]) == 2
    assert "cannot compare" in capsys.readouterr().err


def test_relative_comparison_ignores_a_slower_machine(written: Write, rows: list[Row]) -> None:
    everything = copy.deepcopy(rows)
    for row in everything:
        row["median_us"] *= 3
    old, new = written("old", rows), written("new", everything)
    assert main([old, new]) == 1
    assert main([old, new, "--relative-to", "gloo"]) == 0
    everything[0]["median_us"] *= 2
    assert main([old, written("more", everything), "--relative-to", "gloo"]) == 1


def test_nothing_in_common(written: Write, rows: list[Row]) -> None:
    old, new = written("old", rows[:1]), written("new", rows[1:])
    assert main([old, new]) == 2
