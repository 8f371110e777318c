"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fastcomm.__main__ import main


def test_env_tells_versions_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["native"] == "available"
    assert found["torch"] == found["build"]["torch_version"] == torch.__version__
    assert found["settings"]["FASTCOMM_TRANSPORT"] == "auto"
    assert main(["env"]) == 0
    assert "usable cores: " in capsys.readouterr().out


def test_explain_without_a_name_is_about_all_operations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "--size", "64K"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(": native, " in line for line in lines)
    names = {line.split()[0] for line in lines}
    assert {"all_reduce", "gather", "all_to_all", "barrier", "fused_all_reduce"} <= names
    assert len(names) == len(lines)


def test_explain_prints_a_line_for_each_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "all_reduce", "reduce", "--size", "25M", "--dtype", "bfloat16"]) == 0
    all_reduce, reduce = capsys.readouterr().out.splitlines()
    assert all_reduce.startswith("all_reduce of 26214400 bytes: native, pipelined")
    assert reduce.startswith("reduce of 26214400 bytes: native, pipelined")
    assert main(["explain", "gossip"]) == 0
    assert "refused (there is no such operation)" in capsys.readouterr().out


def test_mistakes_are_answered_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "all_reduce", "--dtype", "float33"]) == 2
    assert "'float33' is no dtype" in capsys.readouterr().err
    for arguments in ([], ["explain", "all_reduce", "--size", "many"]):
        with pytest.raises(SystemExit) as raised:
            main(arguments)
        assert raised.value.code == 2


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FASTCOMM_TRANSPORT", "tcp", "may be one of auto, memfd, posix, gloo"),
        ("FASTCOMM_SEGMENT_MB", "lots", "must be a whole number from 8 to"),
        ("FASTCOMM_BLOCK_BYTES", "1", "must be a whole number from 4096 to"),
    ],
)
def test_a_bad_setting_is_named(name: str, value: str, words: str) -> None:
    import os

    result = subprocess.run(
        [sys.executable, "-m", "fastcomm", "explain", "all_reduce"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert f"{name}={value}" in result.stderr and words in result.stderr
