"""tools/durations.py reads results, and reports what grew."""

from __future__ import annotations

import json
from pathlib import Path

import durations
import pytest

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.c10d.test_work" name="a" time="1.5"/>
<testcase classname="tests.c10d.test_work" name="b" time="40"><failure message="no"/></testcase>
<testcase classname="tests.gpu.test_ddp" name="c" time="0.1"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT)
    monkeypatch.setattr(durations, "RECORDS", tmp_path / "durations.json")
    return path


def test_seconds_add_up_by_file(results: Path) -> None:
    files, outcomes = durations.read([results, results])
    assert files == {"tests/c10d/test_work.py": 83.0, "tests/gpu/test_ddp.py": 0.2}
    assert outcomes == {"passed": 2, "failure": 2, "skipped": 2}


def test_what_grew_is_told_and_noise_is_not() -> None:
    before = {"a": 100.0, "b": 1.0, "c": 30.0}
    assert durations.grown({"a": 140.0, "b": 8.0, "c": 50.0, "new": 12.0}, before) == [
        "c: 30 -> 50 s",
        "new: 0 -> 12 s",
    ]


def test_a_record_is_what_the_next_run_is_compared_with(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert durations.expected() == {}
    steps = results.with_name("steps.tsv")
    steps.write_text("12\tbuild\n1600\tmake test\n")
    command = ["durations.py", str(results), "--steps", str(steps), "--record", "first"]
    monkeypatch.setattr("sys.argv", command)
    durations.main()
    assert "TOO LONG" in capsys.readouterr().out
    assert durations.expected()["tests/c10d/test_work.py"] == 41.5
    assert json.loads(durations.RECORDS.read_text())[0]["steps"] == {"build": 12, "make test": 1600}
    steps.write_text("40\tbuild\n100\tmake test\n")
    monkeypatch.setattr("sys.argv", command[:4])
    durations.main()
    printed = capsys.readouterr().out
    assert "grown since first" in printed and "build: 12 -> 40 s" in printed
    assert "TOO LONG" not in printed
