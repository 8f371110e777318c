"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.patience import ENDS

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
    assert main(["explain", "all_reduce", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "one-shot"


def test_mistakes_are_answered_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        ("", "required: COMMAND"),
        ("explain all_reduce --dtype float33", "'float33' is no dtype"),
        ("explain gossip", "no operation: gossip; known: all_reduce, "),
        ("explain --op avarage", "invalid choice"),
        ("explain --size many", "not a size: 'many'"),
        ("explain --world-size 0", "above 0"),
        ("gossip", "invalid choice"),
    ):
        with pytest.raises(SystemExit) as raised:
            main(words.split())
        assert raised.value.code == 2
        assert said in capsys.readouterr().err
    assert main(["run", "no/such/script.py"]) == 2
    assert capsys.readouterr().err == "fastcomm run: there is no file no/such/script.py\n"


def test_the_help_of_explain_names_all_operations(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "reduce_scatter_tensor" in text and "fused_all_reduce" in text


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
        timeout=ENDS,
        check=False,
    )
    assert result.returncode != 0
    assert f"{name}={value}" in result.stderr and words in result.stderr
