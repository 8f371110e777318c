"""Results as JSON lines: the first line describes the environment, each further one is a row.

A file is created once and never overwritten. Rows are flushed as they come, so a run that is
stopped leaves its rows so far.
"""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from fastcomm._measure.environment import describe

SCHEMA = 1
STDOUT = Path("-")


@dataclass(frozen=True)
class Records:
    """Contents of a file: ``rows`` are all lines but the first, without their ``type``."""

    environment: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)


class RecordWriter:
    """Writer of one file, or of `STDOUT`; a context manager. Not thread-safe.

    Raises:
        FileExistsError: ``path`` exists already.
    """

    def __init__(self, path: Path, command: Sequence[str]) -> None:
        self.path = path
        self.environment = describe(command)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file: TextIO = sys.stdout if path == STDOUT else path.open("x", encoding="utf-8")
        except FileExistsError:
            raise FileExistsError(f"{path} exists; results are never overwritten") from None
        self._line({"type": "environment", "schema": SCHEMA, **self.environment})

    def write(self, row: dict[str, Any]) -> None:
        """Append a row."""
        self._line({"type": "row", **row})

    def _line(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self.path != STDOUT:
            self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as CSV into a file, which is replaced, or to `STDOUT`.

    The columns are those of all rows, except columns of lists or dictionaries, such as batches.
    """
    columns = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if not any(isinstance(row.get(name), (list, dict)) for row in rows)
    ]
    with contextlib.ExitStack() as stack:
        if path == STDOUT:
            file: TextIO = sys.stdout
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def read_records(path: Path) -> Records:
    """Read a file of `RecordWriter`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not of `RecordWriter`, or of another schema.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    parsed = [json.loads(line) for line in lines if line.strip()]
    if not parsed or parsed[0].pop("type", None) != "environment":
        raise ValueError(f"{path}: the first line does not describe the environment")
    if parsed[0].pop("schema", None) != SCHEMA:
        raise ValueError(f"{path}: not of schema {SCHEMA}")
    for row in parsed[1:]:
        row.pop("type", None)
    return Records(parsed[0], parsed[1:])
