"""Hosts beside each other on one machine, by ``fastcomm bench --hosts`` and benchmarks/hosts.py."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hosts as by_hosts
import pytest
from support.namespaces import Host, why_no_delay, why_no_switch
from support.patience import ENDS
from support.ranks import World, run_ranks

from fastcomm.bench.cli import main
from fastcomm.bench.options import build_parser, check_hosts
from fastcomm.bench.records import read_records

_SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/hosts.py"
GBITS = 0.5  # of the limited links: what a busy processor keeps up with, too

pytestmark = pytest.mark.serial  # network namespaces

pytest.importorskip("tabulate")
pytest.importorskip("tqdm")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def limited(hosts: list[Host]) -> Iterator[list[Host]]:
    """Yield the two hosts, whose ends of the cable send at a limited rate."""
    for host in hosts:
        limit = ["tbf", "rate", f"{GBITS * 1000:g}mbit", "burst", "128k", "limit", "4m"]
        command = ["tc", "qdisc", "add", "dev", host.interface, "root", *limit]
        try:
            subprocess.run(host.command(*command), check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no links of limited rate: {error.stderr.strip()}")
    yield hosts
    for host in hosts:
        remove = host.command("tc", "qdisc", "del", "dev", host.interface, "root")
        subprocess.run(remove, check=False, capture_output=True)


def _bench(
    world: World, hosts: list[Host], places: str, port: int, words: list[str]
) -> tuple[int, str, str]:
    """Run the command on one rank, as torchrun starts it; return its status and what it prints."""
    host = hosts[int(places[world.rank])] if hosts else None
    if host is not None:
        host.enter(name_interface=False)
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        MASTER_ADDR=hosts[0].address if hosts else "127.0.0.1",
        MASTER_PORT=str(port),
    )
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["--hosts", *words])
    return status, out.getvalue(), err.getvalue()


def _rows_of(path: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_records(path).rows if kind in row]


def test_links_and_levels_of_two_hosts(
    limited: list[Host], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.jsonl"
    words = ["--sizes", "8,1M", "--iterations", "5", "--warm-up", "0", "--json", str(path)]
    (first, *others) = run_ranks(4, _bench, limited, "0011", 29860, words)
    assert first[0] == 0 and others == [(0, "", "")] * 3, first

    inside, (link,) = _rows_of(path, "host"), _rows_of(path, "link")
    assert [row["ranks"] for row in inside] == [[0, 1], [2, 3]]
    assert all(row["round_trip_us"] > 0 and row["all_reduce_gbs"] > 0 for row in inside)
    assert (link["link"], link["ranks"]) == ([0, 1], [0, 2]) and link["latency_us"] > 0
    for way in ("there_gbits", "back_gbits", "both_gbits"):
        assert 0.8 * GBITS < link[way] < 1.2 * GBITS, link

    levels = _rows_of(path, "op")
    order = [(row["bytes"], row["backend"]) for row in levels]
    assert order == [(n, side) for n in (8, 1 << 20) for side in ("fastcomm", "inside", "gloo")]
    short, long = (row for row in levels if row["backend"] == "fastcomm")
    for row, beside in ((short, levels[1]), (long, levels[4])):
        sum_us = row["inside_us"] + row["wire_us"] + row["rest_us"]
        assert sum_us >= row["median_us"] - 0.01
        assert row["inside_us"] == beside["median_us"] > 0
        assert row["wire_us"] >= link["latency_us"]
        levels_us = {name: row[f"{name}_us"] for name in ("inside", "wire", "rest")}
        assert levels_us[row["bound_by"]] == max(levels_us.values())
    # Some bytes pass before the limit counts.
    assert long["median_us"] > 0.7 * long["wire_us"] > 0.7 * (1 << 20) * 8 / (1.2 * GBITS * 1e3)

    printed = first[1].partition("\n")[2]
    assert "0 and 1  0 and 2" in printed and "bound by" in printed
    assert main(["--table", str(path)]) == 0
    assert capsys.readouterr().out == printed
    assert main(["--table", str(path), "--sizes", "8", "--style", "github"]) == 0
    shown = capsys.readouterr().out
    assert "| all_reduce" in shown and "1 MiB" not in shown


def test_hosts_that_are_not_composed(hosts: list[Host], tmp_path: Path) -> None:
    """One has two ranks, the other one."""
    words = ["--sizes", "8", "--iterations", "5", "--quiet", "--json", str(tmp_path / "rows.jsonl")]
    ended = run_ranks(3, _bench, hosts, "001", 29861, words)
    assert [status for status, *_ in ended] == [0, 0, 0], ended
    path = tmp_path / "rows.jsonl"
    both, alone = _rows_of(path, "host")
    assert both["round_trip_us"] > 0 and "round_trip_us" not in alone
    (link,) = _rows_of(path, "link")
    assert link["ranks"] == [0, 2] and link["both_gbits"] > 0
    whole, inside, gloo = _rows_of(path, "op")
    assert whole["not_composed"] == "the hosts differ in their numbers of ranks"
    assert "wire_us" not in whole
    assert inside["median_us"] > 0 and gloo["median_us"] > 0


def test_one_host_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    first, other = run_ranks(2, _bench, [], "", 29862, ["--json", str(path)])
    assert (first[0], other) == (2, (2, "", ""))
    (line,) = first[2].splitlines()
    assert line.startswith("fastcomm bench: --hosts: 2 ranks that share memory are one host")
    assert not path.exists()


def test_options_that_hosts_have_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = "ops=all_reduce reduction=max ranks=4 dtype=bf16 device=cuda backends=gloo out=folder"
    words += " csv=file plot=file table=file summary="
    given = dict(word.split("=") for word in words.split())
    for name, value in given.items():
        with pytest.raises(SystemExit) as caught:
            main(["--hosts", f"--{name}", *([value] if value else [])])
        assert caught.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith(f"--hosts has no --{name}")
    parser = build_parser()
    words = "--hosts --sizes 8 --budget 1 --iterations 5 --warm-up 0 --no-check --quiet --json -"
    check_hosts(parser, parser.parse_args([*words.split(), "--style", "github"]))


@pytest.mark.parametrize("delay_us", [0, 500])
def test_rows_and_the_table_of_records(
    tmp_path: Path, delay_us: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if (reason := why_no_delay() if delay_us else why_no_switch()) is not None:
        pytest.skip(reason)
    records = tmp_path / "hosts.jsonl"
    what = ["--shapes", "2x2", "--rates", "0", "--ops", "all_reduce,barrier", "--sizes", "8"]
    what += ["--delays", str(delay_us)]
    command = [sys.executable, str(_SCRIPT)]
    ran = subprocess.run(
        [*command, *what, "--json", str(records)], text=True, capture_output=True, timeout=ENDS
    )
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in records.read_text().splitlines()[1:]]
    assert [(row["op"], row["bytes"]) for row in rows] == [("all_reduce", 8), ("barrier", 0)]
    least = delay_us / 1e3
    assert all(row["fastcomm_ms"] > least and row["gloo_ms"] > least for row in rows)
    for more in (["--delays", str(delay_us)], ["--delays", "7"]):
        assert by_hosts.main(["--show", str(records), *more]) == 0
        shown = capsys.readouterr().out
        assert (shown == ran.stdout) == ("2 x 2" in shown) == (more[1] != "7")
    assert ("0.5 ms one way" in ran.stdout) == (delay_us == 500)


def test_records_of_before_delays_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    record = _SCRIPT.parent / "results/hosts.jsonl"
    assert by_hosts.main(["--show", str(record), "--ops", "barrier"]) == 0
    assert "2 x 2" in capsys.readouterr().out
