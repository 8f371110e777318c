import getpass
import json
import socket

import pytest

from fastcomm._measure.environment import describe, hide_paths, summary_line


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("--out=/data/someone/x.jsonl", "--out=<path>"),
        ("~/results", "<path>"),
        ("../elsewhere/x", "<path>"),
        ("benchmarks/results", "benchmarks/results"),
        ("8,64M,8", "8,64M,8"),
        ("PATH=/a/b:/c", "PATH=<path>:<path>"),
    ],
)
def test_paths_are_hidden(text: str, hidden: str) -> None:
    assert hide_paths(text) == hidden


def test_a_description_names_software_but_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCOMM_SPIN_US", "25")
    monkeypatch.setenv("FASTCOMM_CACHE", "/data/someone/cache")
    environment = describe(["bench", "--out", "/data/someone"])
    assert environment["variables"]["FASTCOMM_SPIN_US"] == "25"
    assert environment["variables"]["FASTCOMM_CACHE"] == "<path>"
    assert environment["command"] == "bench --out <path>"
    for key in ("date", "cpu", "cores", "affinity", "kernel", "python", "torch"):
        assert environment[key]
    text = json.dumps(environment)
    assert "someone" not in text
    words = text.replace('"', " ").split()
    assert socket.gethostname() not in words
    assert getpass.getuser() not in words
    assert environment["torch"] in summary_line(environment)
