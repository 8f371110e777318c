"""Dumps as torch's flight recorder writes them, for ``torchfrtrace``, which names who was missing.

A dump is a pickle of plain dictionaries, one for each rank. ``csrc/c10d/edge/recorded_request.cpp``
says why operations are named ``nccl:...``. Left out are messages, of which the analyser takes each
for a collective of the whole group; calls that have no sequence, or an operation that it does not
know; and what no record tells: stacks, timeouts, the shapes of tensors, which are flat here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastcomm._records.ranks import Rank
from fastcomm._records.snapshot import Call, Group

_FORMAT = "2.10"  # as torch 2.13 writes them
_NOTE = "fastcomm, whose operations are named nccl:... here for torch's analyser"

# What the analyser calls an operation, and of how many ranks messages go in and come out: 1, or 0
# for all of the group.
_OPERATIONS = {
    "all_reduce": ("all_reduce", 1, 1),
    "all_reduce_coalesced": ("allreduce_coalesced", 1, 1),
    "fused_all_reduce": ("allreduce_coalesced", 1, 1),
    "broadcast": ("broadcast", 1, 1),
    "reduce": ("reduce", 1, 1),
    "all_gather": ("all_gather", 1, 0),
    "all_gather_into_tensor": ("_all_gather_base", 1, 0),
    "all_gather_coalesced": ("ALLGATHER_coalesced", 1, 0),
    "all_gather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1, 0),
    "gather_shards": ("ALLGATHER_coalesced", 1, 0),
    "gather": ("gather", 1, 0),
    "reduce_scatter": ("reduce_scatter", 0, 1),
    "reduce_scatter_tensor": ("_reduce_scatter_base", 0, 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 0, 1),
    "fused_reduce_scatter": ("REDUCE_SCATTER_coalesced", 0, 1),
    "scatter": ("scatter", 0, 1),
    "all_to_all": ("all_to_all", 1, 1),
    "all_to_all_single": ("all_to_all", 1, 1),
    "barrier": ("all_reduce_barrier", 1, 1),
}
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int8": "Char",
    "uint8": "Byte",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "bytes": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
}

_Line = tuple[str, int]  # of a group's token and a lane, in which sequences count


def write(prefix: str, ranks: Sequence[Rank]) -> list[Path]:
    """Write a dump for each rank to a file named ``prefix`` and the rank; return the files.

    Raises:
        OSError: a file cannot be written.
    """
    files = []
    for rank, dump in dumps(ranks).items():
        file = Path(f"{prefix}{rank}")
        file.write_bytes(pickle.dumps(dump, protocol=2))
        files.append(file)
    return files


def dumps(ranks: Sequence[Rank]) -> dict[int, dict[str, Any]]:
    """Return what each rank's file holds, by rank.

    All begin where the records of all ranks do: torch's analyser would take a call that only some
    ranks remember for one that the others have left out.
    """
    begins = _begins(ranks)
    names = _group_names(ranks)
    return {rank.number: _dump(rank, begins, names) for rank in ranks}


def _lines(rank: Rank) -> Iterator[tuple[_Line, Group, int, Call]]:
    """Yield calls that are told, with the line, group and sequence of each."""
    for call in rank.snapshot.calls:
        group, sequence = call.group, call.sequence
        if group is None or sequence is None or call.is_message:
            continue
        if call.operation in _OPERATIONS:
            yield (group.token, call.lane), group, sequence, call


def _begins(ranks: Sequence[Rank]) -> dict[_Line, int]:
    """Return the first sequence of each line that all ranks remember."""
    begins: dict[_Line, int] = {}
    for rank in ranks:
        if not rank.snapshot.calls or rank.snapshot.calls[0].number == 0:
            continue  # it remembers everything
        first: dict[_Line, int] = {}
        for line, _, sequence, _ in _lines(rank):
            first[line] = min(sequence, first.get(line, sequence))
        for line, sequence in first.items():
            begins[line] = max(sequence, begins.get(line, 0))
    return begins


def _group_names(ranks: Sequence[Rank]) -> dict[str, str]:
    """Return a name for each group, by token: with the token where several have one name."""
    groups = {group.token: group.name for rank in ranks for group in rank.snapshot.groups}
    names = list(groups.values())
    return {
        token: name if names.count(name) == 1 else f"{name}-{token}"
        for token, name in groups.items()
    }


def _dump(rank: Rank, begins: Mapping[_Line, int], names: Mapping[str, str]) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    config: dict[str, dict[str, str]] = {}
    status: dict[str, dict[str, int]] = {}
    places: dict[_Line, int] = {}
    for line, group, sequence, call in _lines(rank):
        if sequence < begins.get(line, 0):
            continue
        name = names[group.token] + (f" lane {call.lane}" if call.lane else "")
        config[name] = {
            "name": name,
            "desc": group.description,
            "ranks": str(list(group.members)),
        }
        place = places.setdefault(line, len(places))
        entry = _entry(call, group, sequence, rank.snapshot.to_date)
        entry |= {
            "record_id": len(entries),
            "op_id": len(entries) + 1,
            "pg_id": place,
            "process_group": (name, group.description),
        }
        entries.append(entry)
        _count(status.setdefault(str(place), {}), sequence, entry["state"])
    return {
        "version": _FORMAT,
        "comm_lib_version": _NOTE,
        "pg_config": config,
        "pg_status": status,
        "entries": entries,
    }


def _entry(call: Call, group: Group, sequence: int, to_date: int) -> dict[str, Any]:
    name, given, got = _OPERATIONS[call.operation]
    dtype = _DTYPES.get(call.dtype, call.dtype)
    is_well = call.outcome == "ok"
    started = call.issued if call.started is None and is_well else call.started
    state = "completed" if is_well else "scheduled" if started is None else "started"
    entry: dict[str, Any] = {
        "frames": [],
        "thread_id": str(call.thread),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": call.issued + to_date,
        "input_sizes": [[call.count * (given or group.size)]],
        "input_dtypes": [dtype],
        "output_sizes": [[call.count * (got or group.size)]],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": None if started is None else started + to_date,
        "time_discovered_completed_ns": None,
        "retired": call.ended is not None,
        "is_p2p": False,
    }
    if is_well and call.ended is not None:
        entry["time_discovered_completed_ns"] = call.ended + to_date
        entry["duration_ms"] = (call.ended - call.issued) / 1e6
    return entry


def _count(status: dict[str, int], sequence: int, state: str) -> None:
    reached = {"scheduled": 1, "started": 2, "completed": 3}[state]
    for level, name in enumerate(("enqueued", "started", "completed"), 1):
        key = f"last_{name}_collective"
        status[key] = max(status.get(key, -1), sequence if level <= reached else -1)
