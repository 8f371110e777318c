from pathlib import Path
from typing import Any

import pytest

from fastcomm.bench.records import RecordWriter, read_records


def test_round_trip(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "new" / "folder" / "a.jsonl"
    with RecordWriter(path, ["bench"]) as writer:
        for row in rows:
            writer.write(row)
        # What was written is there before the file is closed.
        assert len(path.read_text().splitlines()) == 1 + len(rows)
    records = read_records(path)
    assert records.rows == rows
    assert records.environment == writer.environment


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="never overwritten"):
        RecordWriter(path, [])
    assert path.read_text() == "precious"


@pytest.mark.parametrize("text", ["", '{"type": "row"}\n', '{"type": "environment"}\n'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"a\.jsonl"):
        read_records(path)
