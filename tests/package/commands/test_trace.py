"""``fastcomm trace``, on saved jobs and on ranks that are found."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.made_ranks import left_alone, made_job
from support.record_ranks import ranks

from fastcomm._commands import trace
from fastcomm._records import saved
from fastcomm._records.ranks import Rank


def _save(path: Path, ranks: Sequence[Rank], why: str = "") -> str:
    facts = [saved.Facts(rank.number, rank.pid, rank.state, rank.read_at) for rank in ranks]
    saved.save(path, [(r.data, f) for r, f in zip(ranks, facts, strict=True)], why)
    return str(path)


@pytest.fixture
def job(tmp_path: Path) -> str:
    return _save(tmp_path / "job.fcr", made_job(4, 120), "a drill")


def test_the_summary_names_the_straggler(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tabulate")
    assert trace.main([job]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 ranks of ") and lines[0].endswith(": a drill")
    assert lines[-1] == "rank 2 is last in 85% of 120 collectives, by 3.0 ms (median)"


def test_the_summary_as_json(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.main([job, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counted"] == 120
    assert [rank["is_straggler"] for rank in told["ranks"]] == [False, False, True, False]
    assert told["costs"][0]["operation"] == "all_reduce"
    assert told["findings"][0].startswith("rank 2 is last")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_timeline_is_written(
    job: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / name
    assert trace.main([job, "-o", str(output)]) == 0
    told = capsys.readouterr()
    assert (told.out, "ui.perfetto.dev" in told.err) == ("", True)
    data = output.read_bytes()
    events = json.loads(gzip.decompress(data) if name.endswith("gz") else data)["traceEvents"]
    assert sum(event["name"] == "all_reduce" for event in events) == 4 * 120


def test_dumps_and_a_copy_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = _save(tmp_path / "job", left_alone(3, 4, by=1))
    prefix, copy = f"{tmp_path}/rank_", tmp_path / "copy"
    assert trace.main([job, "--flight-recorder", prefix, "--save", str(copy)]) == 0
    counts = [
        len(pickle.loads((tmp_path / f"rank_{rank}").read_bytes())["entries"]) for rank in range(3)
    ]
    assert counts == [5, 4, 5]
    assert [rank.snapshot for rank in saved.load(copy).ranks] == [
        rank.snapshot for rank in saved.load(job).ranks
    ]
    assert "torchfrtrace" in capsys.readouterr().err


def test_a_process_is_looked_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    with ranks() as held:
        found = held.held_up()
        found[1].stop()
        found[3].kill()  # its peers have none of its file open: they started before it
        pid = str(found[0].pid)
        assert trace.main([pid, "--json", "--save", str(copy)]) == 0
    assert json.loads(capsys.readouterr().out)["counted"] == 0  # rank 3 is not here
    loaded = saved.load(copy)
    assert [(rank.number, rank.pid) for rank in loaded.ranks] == [
        (number, found[number].pid) for number in range(3)
    ]
    assert [rank.state for rank in loaded.ranks] == ["sleeping", "stopped", "sleeping"]
    assert loaded.why == f"fastcomm trace {pid}"


def test_what_is_no_job_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").write_text("{}")
    assert trace.main([str(tmp_path / "other"), "--json"]) == 2
    assert f"fastcomm trace: {tmp_path}/other: no saved records" in capsys.readouterr().err
    assert trace.main([str(tmp_path / "none"), "--json"]) == 2
    assert "No such file" in capsys.readouterr().err
    empty = _save(tmp_path / "empty", [])
    assert trace.main([empty, "--json"]) == 2
    assert "has no records of a group" in capsys.readouterr().err
