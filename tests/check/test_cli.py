"""The command ``fastcomm check``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from fastcomm import _native
from fastcomm.__main__ import main
from fastcomm._machine import verdicts as _verdicts
from fastcomm.check import cli


def test_a_machine_without_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _verdicts.write({"FASTCOMM_IPC": "descriptor", "FASTCOMM_TRANSPORT": "posix"})
    files = {"--json": tmp_path / "new" / "check.json", "--plot": tmp_path / "check.png"}
    options = [word for name, file in files.items() for word in (name, str(file))]
    assert main(["check", "--no-devices", "--budget", "0.2", *options]) == 0
    text = capsys.readouterr().out
    assert "memfd" in text and "posix" in text, text
    if not torch.cuda.is_available():
        assert "  GPUs: " in text and "warning" not in text, text
    assert len(re.findall(r"(\d+) of \1\b", text)) == 3, text  # all checks of each path
    found = json.loads(files["--json"].read_text())
    assert {row["verdict"] for row in found["rows"]} == {"ok"}
    speeds = [row for row in found["rows"] if row["check"] == "speed"]
    # One process has no stock backend to compare with.
    assert [list(row["beside"]) for row in speeds] == [[]] * 2 + [["gloo"]] * 4
    assert files["--plot"].stat().st_size > 10_000
    # The verdict on the host is withdrawn, the one on devices kept.
    assert _verdicts.read() == {"FASTCOMM_IPC": "descriptor"}


@pytest.mark.fresh
def test_one_path_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "check.json"
    words = ["--paths", "posix", "--no-devices", "--budget", "0.2", "--quiet"]
    assert main(["check", *words, "--json", str(file)]) == 0
    assert {row["path"] for row in json.loads(file.read_text())["rows"]} == {"posix"}
    with pytest.raises(SystemExit):
        main(["check", "--paths", "posix,handles"])
    assert "no path 'handles'; there are one process, memfd, posix, handle, descriptor" in (
        capsys.readouterr().err
    )


def test_a_part_of_a_check_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not tried may be the way around what is wrong."""
    row = {"path": "devices, handle", "check": "staged", "operation": "reduce", "bytes": 4}
    rows = [{**row, "ranks": 2, "verdict": "wrong", "why": "rank 1: 1 wrong elements"}]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cli, "_checked", lambda *_: rows)
    assert main(["check", "--quiet", "--paths", "handle"]) == 1
    assert _verdicts.read() == {}
    assert main(["check", "--quiet"]) == 1
    assert _verdicts.read() == {"FASTCOMM_ROUTE": "nccl"}


@pytest.mark.parametrize("command", ["check", "tune"])
def test_a_library_that_does_not_load_is_told_in_a_line(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise _native.NativeLibraryError("it is missing")

    monkeypatch.setattr(_native, "load", missing)
    with pytest.raises(SystemExit) as ended:
        main([command, "--ranks", "2"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("argument --ranks: it is missing\n")


def test_a_place_that_cannot_be_written_to_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["check", "--json", str(tmp_path / "file" / "check.json")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "check: " in error, error
