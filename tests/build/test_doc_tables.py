"""Tables in the documents are what the committed records say."""

from __future__ import annotations

from pathlib import Path

import doc_tables
import pytest

pytest.importorskip("tabulate")


def test_tables_are_those_of_the_records(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doc_tables.main(["--check"]) == 0, capsys.readouterr().out


def test_a_figure_that_nobody_measured_is_found(root: Path) -> None:
    text = (root / "README.md").read_text()
    (marker,) = {line for line in text.splitlines() if line.startswith("<!-- table: ")}
    table = doc_tables.made_by(marker.removeprefix("<!-- table: ").removesuffix(" -->"))
    assert table in text
    digit = next(place for place, letter in enumerate(table) if letter.isdigit() and place > 200)
    wrong = text.replace(table, table[:digit] + "7771" + table[digit + 1 :])
    assert doc_tables.with_tables(wrong) == text
