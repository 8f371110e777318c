"""``fastcomm top``, on processes that hold records as ranks do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from package.records.test_exposition import samples
from support.interrupts import interruptible
from support.patience import ENDS
from support.record_files import MadeCall
from support.record_ranks import Ranks, ranks

from fastcomm._commands import top

TOP = [sys.executable, "-m", "fastcomm", "top"]


@pytest.fixture
def held() -> Iterator[Ranks]:
    with ranks() as started:
        yield started


def test_a_job_that_is_held_up(held: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    files = held.held_up(seconds=20)
    assert top.main([str(files[0].pid), "--once"]) == 3
    job, said, empty, group, heads, *rows = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"job \w+: 4 ranks here, 0\.0 calls/s, 0 B/s", job)
    assert re.fullmatch(
        r"rank 2 of group '0' holds up ranks 0, 1, 3: it has been outside any call for 2\d\.\d s; "
        r"its last was all_reduce\(float32, 1024 elements\), sequence 9",
        said,
    )
    assert (empty, group) == ("", "group '0' of all ranks")
    assert re.split(r" {2,}", heads.strip()) == [
        *("rank", "pid", "state", "for", "waits for", "calls/s", "bytes/s")
    ]
    for number, (row, file) in enumerate(zip(rows, files, strict=True)):
        state = r"in all_reduce\(.+\), sequence 10 +2\d\.\d s  2"
        if number == 2:
            state = r"outside any call, sleeps +2\d\.\d s"
        assert re.fullmatch(rf" +{number} +{file.pid}  {state} +0\.0 +0 B", row)


def test_a_reader_that_has_seen_enough(held: Ranks) -> None:
    file = held.start()
    reader, writer = os.pipe()
    os.close(reader)
    command = [*TOP, str(file.pid), "--once"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=ENDS, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_status_tells_whether_all_is_well(
    held: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    other = held.start(data=b"")  # without records
    assert top.main([str(other.pid), "--once"]) == 1
    assert "no job found: process " in capsys.readouterr().out
    now = time.monotonic_ns()
    well = [held.start(number, 2, [MadeCall(now, ended=now + 1)]) for number in range(2)]
    assert top.main([str(well[0].pid), "--once"]) == 0
    assert "no rank has waited for 1 s" in capsys.readouterr().out
    well[1].stop()
    assert top.main([str(well[0].pid), "--once"]) == 3
    assert "rank 1 of group '0' is stopped" in capsys.readouterr().out


def test_a_rank_that_computes(held: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    file = held.start(spins=True)
    assert top.main([str(file.pid), "--once"]) == 0
    assert "outside any call, computes" in capsys.readouterr().out


def test_json_has_its_keys(held: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    files = held.held_up(seconds=20)
    files[3].kill()
    assert top.main([str(files[0].pid), "--once", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"time", "warnings", "jobs"}
    assert abs(found["time"] - time.time()) < ENDS and isinstance(found["warnings"], list)
    # Of rank 3 nothing is left: no peer that started later holds its file.
    (job,) = found["jobs"]
    assert set(job) == {
        *("job", "verdict", "held_up", "waits_s", "culprits", "processes", "groups")
    }
    (group,) = job["groups"]
    assert job["held_up"] and 20 <= job["waits_s"] < 20 + ENDS
    assert job["culprits"] == [{"token": group["token"], "rank": 2}]
    assert [process["pid"] for process in job["processes"]] == [file.pid for file in files[:3]]
    assert {*job["processes"][0]} == {
        *("pid", "own_pid", "user", "command", "system_state", "calls", "dropped"),
        *("calls_per_s", "bytes_per_s"),
    }
    assert group["missing"] == [[3, 3]] and group["engines"] == ["shared memory"]
    zero, _, two = group["ranks"]
    assert {*zero} == {
        *("rank", "pid", "own_pid", "calls_per_s", "bytes_per_s", "state", "computes", "state_s"),
        *("open_calls", "call", "last_call", "waits_for", "otherwise", "missing"),
    }
    assert (zero["state"], zero["waits_for"], zero["call"]["sequence"]) == ("in call", [2], 10)
    assert zero["call"] == zero["last_call"] and zero["call"]["open_s"] >= 20
    assert (two["state"], two["call"], two["last_call"]["open_s"]) == (
        "outside any call",
        None,
        None,
    )
    keys = set(re.findall(r"\w+", (sys.modules["fastcomm._records.as_json"].__doc__ or "")))
    assert {*zero, *zero["call"], *group, *job, *job["processes"][0]} <= keys


def _started(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    with interruptible():
        return subprocess.Popen(command, **options)


def test_json_again_and_again_is_a_line_each(held: Ranks) -> None:
    file = held.start()
    command = [*TOP, str(file.pid), "--json", "--interval", "0.05"]
    with _started(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        lines = [json.loads(running.stdout.readline()) for _ in range(3)]
        running.send_signal(signal.SIGINT)
        assert running.wait(ENDS) == 130
    assert [len(line["jobs"]) for line in lines] == [1, 1, 1]


def test_neither_torch_nor_the_native_library_is_imported(held: Ranks) -> None:
    file = held.start()
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *TOP[1:], str(file.pid), "--once"],
        capture_output=True,
        text=True,
        timeout=ENDS,
    )
    names = [line.rpartition("|")[2].strip() for line in result.stderr.splitlines()]
    assert "fastcomm._records.find" in names and result.returncode == 0
    assert not [name for name in names if name.split(".")[0] == "torch" or name == "fastcomm._C"]


@pytest.mark.serial
def test_one_look_is_quick(held: Ranks) -> None:
    files = held.held_up(full=True)
    begin = time.monotonic()
    result = subprocess.run([*TOP, str(files[0].pid), "--once"], capture_output=True, timeout=ENDS)
    assert result.returncode == 3
    assert time.monotonic() - begin < 2


def test_a_file_for_prometheus(held: Ranks, tmp_path: Path) -> None:
    file = held.held_up()[0]
    path = tmp_path / "ranks.prom"
    assert top.main([str(file.pid), "--once", "--prometheus", str(path)]) == 0
    found = samples(path.read_text())
    assert found["fastcomm_wait_seconds", "0", ""] >= 20
    assert found["fastcomm_calls_total", "2", ""] == 10
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_server_for_prometheus(held: Ranks) -> None:
    file = held.held_up()[0]
    command = [*TOP, str(file.pid), "--prometheus", "127.0.0.1:0"]
    with _started(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        url = running.stderr.readline().split()[-1]
        try:
            assert url.startswith("http://127.0.0.1:") and url.endswith("/metrics")
            for _ in range(2):
                with urllib.request.urlopen(url, timeout=ENDS) as answer:
                    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    found = samples(answer.read().decode())
                assert found["fastcomm_bytes_total", "0", ""] == 11 * 4096
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(url.replace("metrics", "other"), timeout=ENDS)
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(ENDS) == 130


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["7", "--all"], "PID and --all exclude each other"),
        (["--json", "--prometheus", "9"], "--prometheus and --json exclude each other"),
        (["--once", "--prometheus", "9"], "--once writes a file; a server goes on"),
        (["x"], "a whole number above 0, not 'x'"),
        (["--interval", "0"], "a number of seconds above 0, not '0'"),
    ],
)
def test_mistakes(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        top.main(words)
    assert ended.value.code == 2 and why in capsys.readouterr().err


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert top.main(["1", "--once", "--prometheus", str(tmp_path / "no" / "file")]) == 2
    assert "fastcomm top: " in capsys.readouterr().err


def test_the_help_has_the_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        top.main(["--help"])
    said = capsys.readouterr().out
    assert all(f"\n{status:>5}  " in said for status in (0, 1, 2, 3, 130))


def test_lines_for_whoever_reads_no_terminal(held: Ranks) -> None:
    file = held.start()
    command = [*TOP, str(file.pid), "--interval", "0.05"]
    with _started(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        seen = ""
        while seen.count("job ") < 3:
            seen += running.stdout.readline()
        running.send_signal(signal.SIGINT)
        assert running.wait(ENDS) == 130
    assert "\x1b" not in seen
