"""``fastcomm tune --hosts``, and the use of what it keeps in groups over several hosts."""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.namespaces import Host
from support.ranks import World, run_ranks
from support.stores import join_hosts

import fastcomm
from fastcomm._machine import tuning
from fastcomm.tune import cli
from fastcomm.tune import hosts as by_hosts
from fastcomm.tune.candidates import BETWEEN_HOSTS, Message

pytestmark = pytest.mark.serial  # network namespaces

pytest.importorskip("tabulate")
pytest.importorskip("tqdm")

KIB = 1 << 10
# The first candidate stays unless another is better; a message for every 4 KiB is not.
STEPS = (
    replace(
        BETWEEN_HOSTS[0],
        candidates=({}, {"short_bytes": 2 * KIB}),
        messages=(Message("broadcast", KIB),),
    ),
    replace(
        BETWEEN_HOSTS[1],
        candidates=({"chunk_bytes": 4 * KIB}, {"chunk_bytes": 512 * KIB}),
        messages=(Message("all_reduce", 1024 * KIB),),
    ),
)


def _enter(world: World, hosts: list[Host], places: str, port: int, folders: list[Path]) -> None:
    """Be a rank that torchrun has started on a host, with a home of its own."""
    host = int(places[world.rank])
    if hosts:
        hosts[host].enter(name_interface=False)
    os.environ.pop(tuning.SWITCH, None)  # the tests' is off
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        MASTER_ADDR=hosts[0].address if hosts else "127.0.0.1",
        MASTER_PORT=str(port),
        XDG_CACHE_HOME=str(folders[host]),
    )


def _measure(
    world: World, hosts: list[Host], port: int, folders: list[Path]
) -> tuple[by_hosts.Found, list[dict[str, Any]], list[str]]:
    _enter(world, hosts, "0011", port, folders)
    rows: list[dict[str, Any]] = []
    begun: list[str] = []
    found = by_hosts.run(by_hosts.Options(1.0, steps=STEPS), rows.append, begun.append)
    return found, rows, begun


def _join(world: World, hosts: list[Host], port: int, places: str, folders: list[Path]) -> str:
    """Form a group as a program does, and return what it says of its limits."""
    _enter(world, hosts, places, port, folders)
    join_hosts(world, hosts, port, places)
    return fastcomm.explain("all_reduce", torch.ones(9)).reason


def test_what_is_measured_is_kept_on_each_host_and_taken(
    hosts: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "0", tmp_path / "1"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders[1]))
    tuning.write({2: {"payload_bytes": 8192}, (2, 1): {"short_bytes": 8192}})
    ended = run_ranks(4, _measure, hosts, 29980, folders)
    found, rows, begun = ended[0]
    assert all(other == (found, [], []) for other in ended[1:])
    assert found.hosts == [[0, 1], [2, 3]] and found.values["chunk_bytes"] == 512 * KIB
    files = [str(folder / "fastcomm" / "tuning.json") for folder in folders]
    assert found.kept == [(files[0], ""), (files[1], "")]
    candidates = [candidate for step in STEPS for candidate in step.candidates]
    assert [row["candidate"] for row in rows] == candidates
    assert {row["on"] for row in rows} == {"2 x 2"} and len(begun) == 2
    # What was there before stays.
    before = {2: {"payload_bytes": 8192}, (2, 1): {"short_bytes": 8192}}
    assert tuning.read() == {**before, (2, 2): found.values}
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders[0]))
    assert tuning.read() == {(2, 2): found.values}
    by = "tuned for this number of hosts and ranks"
    for reason in run_ranks(4, _join, hosts, 29981, "0011", folders):
        assert f"chunks of 524288 bytes ({by})" in reason
    for reason in run_ranks(6, _join, hosts, 29982, "000111", folders):
        assert "(by default)" in reason and "tuned for" not in reason


def _tune(
    world: World, hosts: list[Host], places: str, port: int, folders: list[Path], words: list[str]
) -> tuple[int, str, str]:
    _enter(world, hosts, places, port, folders)
    os.environ["FASTCOMM_HOSTS_CHUNK_BYTES"] = "4096"  # would count in every candidate's group
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(["--hosts", *words])
    return status, out.getvalue(), err.getvalue()


@pytest.mark.slow
def test_the_command(hosts: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that share a home: both find their values there."""
    file = tmp_path / "found.json"
    words = ["--budget", "5", "--json", str(file)]
    first, *others = run_ranks(4, _tune, hosts, "0011", 29983, [tmp_path] * 2, words)
    assert first[0] == 0 and others == [(0, "", "")] * 3, first
    report = json.loads(file.read_text())
    assert len(report["rows"]) == sum(len(step.candidates) for step in BETWEEN_HOSTS)
    assert "short limit, 2 x 2 ranks, µs" in first[1] and "chunk, 2 x 2 ranks, µs" in first[1]
    assert first[1].count("chosen") == 2 and "all_reduce of 25 MiB" in first[1]
    record = tmp_path / "fastcomm" / "tuning.json"
    assert f"host 0: {record}\nhost 1: {record}\n" in first[1]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuning.read() == ({(2, 2): report["values"]} if report["values"] else {})
    slowest = next(row for row in report["rows"] if row["step"] == "chunk")["us"]
    assert slowest["all_reduce 26214400"] < 5e6  # in chunks of 4 KiB it is more


def test_one_host_is_refused(tmp_path: Path) -> None:
    first, other = run_ranks(2, _tune, [], "00", 29984, [tmp_path], [])
    assert (first[0], other) == (2, (2, "", ""))
    (line,) = first[2].splitlines()
    assert line == "fastcomm tune: --hosts: all ranks share memory; nothing is composed of hosts"
    assert not (tmp_path / "fastcomm").exists()


def _without_a_place(world: World, hosts: list[Host], port: int, folders: list[Path]) -> Any:
    return _measure(world, hosts, port, folders)[0].kept


def test_a_host_that_cannot_keep_it_is_told(hosts: list[Host], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folders = [tmp_path / "0", tmp_path / "file"]
    for kept in run_ranks(4, _without_a_place, hosts, 29985, folders):
        assert kept[0][1] == "" and "Not a directory" in kept[1][1]


def test_options_and_places(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in ((["--ranks", "2"], "--hosts has no --ranks"),
                        (["--devices"], "--hosts has no --devices"),
                        ([], "start it on each host: torchrun --nnodes 2")):  # fmt: skip
        with pytest.raises(SystemExit) as caught:
            cli.main(["--hosts", *words])
        assert caught.value.code == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
