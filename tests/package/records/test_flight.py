"""Dumps of a flight recorder made from records, and what torch's analyser says of them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.flight import analysed
from support.made_ranks import BASE, left_alone, made_job, made_rank
from support.patience import ENDS
from support.record_files import MadeCall, MadeGroup

from fastcomm._records import flight, layout
from fastcomm._records.ranks import Rank


def _analysed(folder: Path, ranks: Sequence[Rank]) -> str:
    """Return the words of torch's analyser."""
    files = flight.write(f"{folder}/rank_", ranks)
    assert files == [folder / f"rank_{rank.number}" for rank in ranks]
    return analysed(folder)[1]


def test_torchfrtrace_names_a_rank_that_has_not_come(tmp_path: Path) -> None:
    module = "torch.distributed.flight_recorder.fr_trace"
    pytest.importorskip(module, reason="no analyser in this torch")
    flight.write(f"{tmp_path}/rank_", left_alone(4, 7, by=2))
    command = [sys.executable, "-m", module, str(tmp_path), "-p", "rank_"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS)
    words = done.stdout + done.stderr
    assert done.returncode == 0, words
    assert "Not all ranks joining collective, sequence number: 7" in words
    assert "missing ranks: {2}" in words
    assert words.count("Not all ranks joining") == 1
    assert "collective: nccl:all_reduce" in words


def test_the_analyser_names_a_rank_that_has_left_one_out(tmp_path: Path) -> None:
    ranks = []
    for rank in made_job(4, 12):
        calls = [
            MadeCall(call.issued, call.started or 0, call.ended or 0, sequence=call.sequence or 0)
            for call in rank.snapshot.calls
            if (rank.number, call.sequence) != (2, 7)
        ]
        ranks.append(made_rank(rank.number, 4, calls))
    words = _analysed(tmp_path, ranks)
    assert "Not all ranks joining collective, sequence number: 7" in words
    assert "missing ranks: {2}" in words


def test_the_analyser_names_a_rank_that_calls_something_else(tmp_path: Path) -> None:
    calls = [MadeCall(issued=BASE + 1, operation=name) for name in ("all_reduce", "broadcast")]
    words = _analysed(tmp_path, [made_rank(n, 2, [call]) for n, call in enumerate(calls)])
    assert "Culprit rank 1" in words and "COLLECTIVE_TYPE_MISMATCH" in words


def test_the_analyser_finds_no_fault_where_there_is_none(tmp_path: Path) -> None:
    groups = [
        MadeGroup(0, 2),
        MadeGroup(0, 2, name="0", token=8),  # of the same name, after the first was destroyed
    ]
    calls: list[MadeCall] = []
    for number, operation in enumerate(("all_reduce", "broadcast", "all_gather", "barrier")):
        for group, lane in ((0, 0), (0, 1), (1, 0)):
            begin = BASE + 100 * (number + 1) + 10 * len(calls)
            calls.append(
                MadeCall(
                    *(begin, begin + 1, begin + 2),
                    operation=operation,
                    sequence=number,
                    group=group,
                    lane=lane,
                )
            )
    calls.append(MadeCall(issued=BASE + 9000, operation="send", rank=1))
    ranks = [
        made_rank(rank, 2, calls, [MadeGroup(rank, 2, token=group.token) for group in groups])
        for rank in range(2)
    ]
    assert _analysed(tmp_path, ranks) == ""
    assert all(len(dump["entries"]) == 12 for dump in flight.dumps(ranks).values())


def test_dumps_begin_where_all_ranks_remember() -> None:
    many = [
        MadeCall(BASE + 10 * n + 1, BASE + 10 * n + 2, BASE + 10 * n + 3, sequence=n)
        for n in range(layout.NUM_CALLS + 5)
    ]
    dumps = flight.dumps([made_rank(0, 2, many), made_rank(1, 2, many[:7])])
    first = [dump["entries"][0] for dump in dumps.values()]
    assert [(entry["collective_seq_id"], entry["record_id"]) for entry in first] == [(5, 0)] * 2
    assert [len(dump["entries"]) for dump in dumps.values()] == [layout.NUM_CALLS, 2]


def test_an_entry_has_what_torch_writes(tmp_path: Path) -> None:
    calls = [
        MadeCall(BASE + 100, BASE + 200, BASE + 300, operation="all_gather", count=6),
        MadeCall(BASE + 400, BASE + 500, 0, sequence=1),
        MadeCall(BASE + 600, 0, BASE + 700, sequence=2, outcome="PeerLostError"),
    ]
    (file,) = flight.write(f"{tmp_path}/x", [made_rank(0, 1, calls, [MadeGroup(0, 3)])])
    dump = pickle.loads(file.read_bytes())
    assert dump["pg_config"] == {
        "0": {"name": "0", "desc": "group '0' of all ranks", "ranks": "[0, 1, 2]"},
    }
    assert dump["pg_status"] == {
        "0": {
            "last_enqueued_collective": 2,
            "last_started_collective": 1,
            "last_completed_collective": 0,
        }
    }
    assert dump["entries"][0] == {
        "record_id": 0,
        "op_id": 1,
        "pg_id": 0,
        "process_group": ("0", "group '0' of all ranks"),
        "frames": [],
        "thread_id": "1",
        "collective_seq_id": 0,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_gather",
        "time_created_ns": BASE + 100,
        "duration_ms": 0.0002,
        "input_sizes": [[6]],
        "input_dtypes": ["Float"],
        "output_sizes": [[18]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": BASE + 200,
        "time_discovered_completed_ns": BASE + 300,
        "retired": True,
        "is_p2p": False,
    }
    states = [(entry["state"], entry["retired"]) for entry in dump["entries"]]
    assert states == [("completed", True), ("started", False), ("scheduled", True)]


def test_operations_are_those_that_the_analyser_knows() -> None:
    types = pytest.importorskip("torch.distributed.flight_recorder.components.types")
    for name, *_ in flight._OPERATIONS.values():
        assert name in types.COLLECTIVES, name
