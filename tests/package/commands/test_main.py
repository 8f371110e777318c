"""The command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from support.patience import ENDS

import fastcomm
from fastcomm import _native
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
    others = ["explain", "allreduce", "Reduce", "--size", "25MB", "--dtype", "bf16", "--op", "SUM"]
    assert main(others) == 0
    assert capsys.readouterr().out.splitlines() == [all_reduce, reduce]
    assert main(["explain", "all_reduce", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "one-shot"


MISTAKES = [
    ("", "required: COMMAND"),
    ("gossip", "no command: gossip; known: env, explain, "),
    ("explian", "no command: explian: did you mean explain?"),
    ("explain all_reduce --dtype float33", "'float33' is no dtype"),
    ("explain gossip", "no operation: gossip; known: all_reduce, "),
    ("explain all_redcue", "no operation: all_redcue: did you mean all_reduce?"),
    ("explain --op avarage", "no reduction: avarage: did you mean average?"),
    ("explain --dtype bfloat61", "did you mean bfloat16?"),
    ("explain --size many", "not a size: 'many'"),
    ("explain --size 1.5M", "not a size: '1.5M'; write for example 8, 64K or 25M"),
    ("explain --world-size 0", "above 0"),
    ("run", "there is no script to run"),
    ("run -m", "-m needs a module"),
    ("run --nproc", "expected one argument"),
    ("run --nproc none script.py", "a whole number above 0, not 'none'"),
    ("run --nproc 2", "there is no script to run"),
    ("run --bind script.py", "--bind needs --nproc"),
    ("run -m --fast", "--fast is no module"),
    ("run --fast script.py", "unrecognized arguments: --fast"),
    ("run no/such/script.py", "fastcomm run: there is no file no/such/script.py"),
    ("bench --ops allredcue", "no operation: allredcue: did you mean all_reduce?"),
    ("bench --dtype float33", "'float33' is no dtype of torch: did you mean float32?"),
    ("bench --backends glooo", "no backend: glooo: did you mean gloo?"),
    ("bench --reduction summ", "no reduction: summ: did you mean sum?"),
    ("bench --reduction ,", "--reduction needs a name; known: sum, "),
    ("bench --sizes 8,25X", "not a size: '25X'"),
    ("bench --sizes 8:4:2", "a range of sizes needs"),
    ("bench --sizes 8:16", "not a size or a range: '8:16'"),
    ("bench --sizes 1:8:x", "not a factor: 'x'"),
    ("bench --style nonesuch", "--style nonesuch: known are "),
    ("bench --ranks two", "a whole number above 0"),
    ("bench --budget soon", "a number of seconds above 0, not 'soon'"),
    ("bench --warm-up few", "a whole number, 0 or more"),
    ("bench --hosts", "--hosts needs a job that runs on several hosts: start it on each host: "),
    ("bench --out a --json b", "not allowed with argument --out"),
    ("bench --csv /proc/none/at/all", "bench cannot write: "),
    ("bench --json /proc/none/at/all", "bench cannot write: "),
    ("check --ranks 1", "a number of ranks from 2 to 64, not '1'"),
    ("check --devices x", "--devices: a number of ranks from 2 to 64, not 'x'"),
    ("check --speed", "unrecognized arguments: --speed"),
    ("check --budget 0", "a number of seconds above 0"),
    ("check --timeout nan", "a number of seconds above 0"),
    ("check --timeout 23", "at least 20 and two budgets"),
    ("tune --ranks 1", "from 2 to 64"),
    ("tune --ranks 65", "from 2 to 64"),
    ("tune --devices x", "from 2 to 64, not 'x'"),
    ("tune --budget 0", "a number of seconds above 0"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_mistakes_are_answered_with_status_2(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(words.split())
    except SystemExit as raised:
        status = raised.code
    lines = capsys.readouterr().err.splitlines()
    assert status == 2 and said in lines[-1], lines
    assert len(lines) == 1 or lines[0].startswith("usage: fastcomm"), lines


def test_the_help_of_explain_names_all_operations_whatever_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASTCOMM_TUNING", "nonesuch")
    with pytest.raises(SystemExit) as raised:
        main(["explain", "--help"])
    said, told = capsys.readouterr()
    assert raised.value.code == 0 and told == ""
    assert "reduce_scatter_tensor" in said and "fused_all_reduce" in said


COMMANDS = ("env", "explain", "check", "tune", "bench", "compare", "run")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"fastcomm {fastcomm.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([name, "--help"])
    assert raised.value.code == 0
    text = capsys.readouterr().out
    usage, does, *rest = text.split("\n\n")
    assert usage.startswith(f"usage: fastcomm {name} ")
    assert len(does.split()) > 4 and ":" not in does.split()[0]
    options = next(part for part in rest if part.startswith("options:"))
    assert "-h, --help" in options


# In a process of its own: one that has read settings does not read them again.
WITH_BROKEN_SETTINGS = """
import contextlib, io, json, os, sys, tempfile
from fastcomm.__main__ import main

script = os.path.join(tempfile.mkdtemp(), "script.py")
open(script, "w").close()
missing = script + ".jsonl"
commands = (
    ["env"], ["env", "--json"], ["explain"], ["explain", "all_reduce"], ["check"], ["tune"],
    ["tune", "--forget"], ["bench"], ["bench", "--table", missing], ["bench", "--plot", missing],
    ["compare", missing, missing], ["run", script],
)
answers = []
for name in ("FASTCOMM_" + word for word in sys.argv[1].split(",")):
    before = os.environ.pop(name, None)
    for value in ("lots", "-7", "2.5", "99999999999999999999999"):
        if value == "2.5" and name.endswith("_S"):
            continue  # seconds may be fractions
        os.environ[name] = value
        for command in commands:
            said, printed = io.StringIO(), io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
                try:
                    status = main(command)
                except BaseException as error:
                    status = repr(error)
            heard = (status, said.getvalue(), printed.getvalue())
            answers.append((command[0], f"{name}={value}", *heard))
    del os.environ[name]
    if before is not None:
        os.environ[name] = before
print(json.dumps(answers))
"""


def test_a_bad_setting_is_named() -> None:
    rows = _native.load().settings()
    names = sorted(name for name, _, allowed, _ in rows if allowed != "a folder")  # any text
    listed = ",".join(name.removeprefix("FASTCOMM_") for name in names)
    result = subprocess.run(
        [sys.executable, "-c", WITH_BROKEN_SETTINGS, listed],
        capture_output=True,
        text=True,
        timeout=ENDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    assert {answer[0] for answer in answers} == set(COMMANDS)
    assert {answer[1].partition("=")[0] for answer in answers} == set(names)
    for command, setting, status, said, printed in answers:
        told = f"{command} with {setting}: {status}, {said!r}"
        assert status == 2 and printed == "" and said.count("\n") == 1, told
        assert said.startswith(f"fastcomm {command}: {setting}: "), told
        assert re.search("may be one of |must be a (whole )?number (of seconds )?from ", said), told


def test_a_library_that_does_not_load_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise _native.NativeLibraryError("it is missing")

    monkeypatch.setattr(_native, "load", fails)
    assert main(["explain", "all_reduce"]) == 2
    assert capsys.readouterr().err == "fastcomm explain: it is missing\n"
