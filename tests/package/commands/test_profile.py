"""``fastcomm profile``, on a trace that is known and on traces of ranks."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks

from fastcomm._commands import profile

COMMS: dict[str, Any] = {
    "Collective name": "allreduce",
    "Process Group Name": "0",
    "dtype": "Float",
    "Seq": 1,
    "Process Group Description": "default_pg",
    "In msg nelems": 100,
}


def _event(name: str, ts: float, dur: float, args: Any = None, tid: int = 1) -> dict[str, Any]:
    cat = "cpu_op" if tid == 1 else "privateuse1_runtime"
    found = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid}
    return found | {"args": args or {}}


KNOWN: dict[str, Any] = {
    "distributedInfo": {"rank": 3},
    "traceEvents": [
        {"ph": "M", "name": "thread_name", "tid": 9, "args": {"name": "fastcomm: group '0'"}},
        _event("record_param_comms", 0, 10, COMMS),
        _event("all_reduce", 20, 100, {"sequence": 0, "bytes": 400, "queued (us)": 15.0}, tid=9),
        _event("waiting for rank 2", 20, 25, tid=9),
        _event("moving data", 45, 75, tid=9),
        _event("aten::mm", 100, 40),
        _event("record_param_comms", 200, 10, COMMS | {"Collective name": "gather", "Seq": 2}),
    ],
}


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert profile.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_known_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(KNOWN))
    reduced, gathered = _json(capsys, str(tmp_path))
    assert reduced == {
        "rank": 3,
        "group": "default_pg",
        "operation": "allreduce",
        "calls": 1,
        "bytes": 400,
        "time": 100.0,
        "waiting": 25.0,
        "hidden": 20.0,
        "waited_for": {"rank 2": 25.0},
    }
    assert (gathered["operation"], gathered["calls"], gathered["time"]) == ("gather", 1, 0.0)


def test_traces_of_a_rank_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(KNOWN))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(KNOWN).encode()))
    reduced, _ = _json(capsys, str(tmp_path / "a.json"), str(tmp_path / "b.json.gz"))
    assert (reduced["calls"], reduced["bytes"], reduced["hidden"]) == (2, 800, 40.0)


def test_no_more_is_hidden_than_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, dur = 4945995733620.503, 6238.688  # begin + dur - begin is more than dur
    trace = {
        "traceEvents": [
            KNOWN["traceEvents"][0],
            _event("record_param_comms", begin, 1, COMMS),
            _event("all_reduce", begin, dur, {"sequence": 0, "bytes": 4, "queued (us)": 0}, tid=9),
            _event("aten::mm", begin - 5, 2 * dur),
        ]
    }
    (tmp_path / "a.json").write_text(json.dumps(trace))
    (row,) = _json(capsys, str(tmp_path))
    assert (row["time"], row["hidden"]) == (dur, dur)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tabulate")
    (tmp_path / "a.json").write_text(json.dumps(KNOWN))
    assert profile.main([str(tmp_path)]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["3", "default_pg", "allreduce", "1", "400", "0.100", "25%", "rank", "2", "20%"] in words
    assert ["3", "default_pg", "gather", "1", "400"] in words


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": [{"ph": "X"}]}'])
def test_what_is_no_trace_is_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    assert profile.main([str(path), "--json"]) == 2
    assert f"{path} is no trace of torch.profiler" in capsys.readouterr().err
    assert profile.main([str(tmp_path / "none.json"), "--json"]) == 2
    assert "No such file" in capsys.readouterr().err


def _write(world: World, folder: str) -> None:
    world.init()
    data = torch.randn(300, 300)
    dist.barrier()
    with torch.profiler.profile() as found:
        work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
        for _ in range(20):
            data = data @ data / 300
        assert work is not None
        work.wait()
        time.sleep(0.2 * world.rank)
        dist.all_gather_into_tensor(torch.ones(20), torch.ones(10))
    found.export_chrome_trace(f"{folder}/{world.rank}.json")


def test_traces_of_ranks(tmp_path: Path) -> None:
    run_ranks(2, _write, str(tmp_path))
    command = [sys.executable, "-m", "fastcomm", "profile", str(tmp_path), "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    told = {(row["rank"], row["operation"]): row for row in rows}
    assert sorted(told) == [(r, o) for r in (0, 1) for o in ("_allgather_base", "allreduce")]
    for rank in (0, 1):
        reduced, gathered = told[rank, "allreduce"], told[rank, "_allgather_base"]
        assert (reduced["bytes"], gathered["bytes"]) == (4 << 20, 40)
        assert 0 < reduced["hidden"] <= reduced["time"]
        assert gathered["hidden"] == 0
    assert told[0, "_allgather_base"]["waited_for"]["rank 1"] > 100_000
    assert told[1, "_allgather_base"]["waiting"] < 100_000


def test_hta_finds_sizes_and_groups(tmp_path: Path) -> None:
    pytest.importorskip("hta", reason="pip install HolisticTraceAnalysis")
    from hta.common.trace import Trace
    from hta.configs.parser_config import ParserConfig

    run_ranks(2, _write, str(tmp_path))
    told = ParserConfig.get_default_cfg()
    told.set_args([*told.get_args(), *ParserConfig.ARGS_COMMUNICATION])
    ParserConfig.set_default_cfg(told)
    traces = Trace(trace_dir=str(tmp_path))
    traces.parse_traces()
    names = traces.symbol_table.get_sym_table()
    for rank in (0, 1):
        events = traces.get_trace(rank)
        calls = events[events["name"].map(lambda name: names[name]) == "record_param_comms"]
        assert list(calls["collective_name"]) == ["allreduce", "_allgather_base"]
        assert list(calls["in_msg_nelems"]) == [1 << 20, 10]
        assert set(calls["group_size"]) == {2}
        assert set(calls["msg_dtype"]) == {"Float"}
