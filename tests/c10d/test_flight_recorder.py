"""torch's flight recorder: entries of every call, dumps, and what torch's analyser says of them."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.patience import until
from support.ranks import World, run_outcomes, run_ranks

import fastcomm
from fastcomm.errors import CollectiveTimeoutError, PeerLostError, UnsupportedError

ON = {"TORCH_FR_BUFFER_SIZE": "200"}
VARIABLES = [
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
]


@pytest.fixture(autouse=True)
def _no_variables_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def dump() -> dict[str, Any]:
    """Return what the recorder of this process holds."""
    pickled = fastcomm._C.flight_recorder_dump(False, False)
    assert pickled is not None
    found: dict[str, Any] = pickle.loads(pickled)
    return found


def analysed(folder: Path, incomplete: bool = False) -> tuple[Any, str]:
    """Return the data base and the words of torch's analyser (torchfrtrace)."""
    builder = pytest.importorskip(
        "torch.distributed.flight_recorder.components.builder", reason="no analyser in this torch"
    )
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    words: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())

    logger, listener = builder.logger.logger, Listener()
    logger.addHandler(listener)
    flags = ["--allow-incomplete-ranks"] if incomplete else []
    try:
        args: argparse.Namespace = JobConfig().parse_args([str(folder), "-p", "rank_", *flags])
        details, version = read_dir(args)
        return builder.build_db(details, args, version), "\n".join(words)
    finally:
        gc.enable()  # read_dir leaves it off
        logger.removeHandler(listener)


def _group() -> Any:
    return dist.group.WORLD


CALLS: list[tuple[str, Callable[[int, int], Any], list[Any], list[Any]]] = [
    # the name in the dump; the call; sizes in and out, of rank 0 of 3
    ("all_reduce", lambda r, n: dist.all_reduce(torch.ones(4, 2)), [[4, 2]], [[4, 2]]),
    ("broadcast", lambda r, n: dist.broadcast(torch.ones(5), 1), [[5]], [[5]]),
    ("reduce", lambda r, n: dist.reduce(torch.ones(6), 2), [[6]], [[6]]),
    (
        "all_gather",
        lambda r, n: dist.all_gather([torch.ones(2) for _ in range(n)], torch.ones(2)),
        [[2]],
        [[3, 2]],
    ),
    (
        "_all_gather_base",
        lambda r, n: dist.all_gather_into_tensor(torch.ones(2 * n), torch.ones(2)),
        [[2]],
        [[6]],
    ),
    (
        "reduce_scatter",
        lambda r, n: dist.reduce_scatter(torch.ones(7), [torch.ones(7) for _ in range(n)]),
        [[3, 7]],
        [[7]],
    ),
    (
        "_reduce_scatter_base",
        lambda r, n: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * n)),
        [[6]],
        [[2]],
    ),
    (
        "all_to_all",
        lambda r, n: dist.all_to_all_single(torch.ones(2 * n), torch.ones(2 * n)),
        [[6]],
        [[6]],
    ),
    (
        "all_to_all",
        lambda r, n: dist.all_to_all_single(
            torch.ones(n * (r + 1)), torch.ones(6), [r + 1] * n, [1, 2, 3]
        ),
        [[6]],
        [[3]],
    ),
    (
        "all_to_all",
        lambda r, n: dist.all_to_all(
            [torch.ones(r + 1) for _ in range(n)], [torch.ones(k + 1) for k in range(n)]
        ),
        [[6]],
        [[3, 1]],
    ),
    (
        "gather",
        lambda r, n: dist.gather(
            torch.ones(3), [torch.ones(3) for _ in range(n)] if r == 0 else None, 0
        ),
        [[3]],
        [[3, 3]],
    ),
    (
        "scatter",
        lambda r, n: dist.scatter(
            torch.ones(3), [torch.ones(3) for _ in range(n)] if r == 0 else None, 0
        ),
        [[3, 3]],
        [[3]],
    ),
    ("all_reduce_barrier", lambda r, n: dist.barrier(), [], []),
    (
        "allreduce_coalesced",
        lambda r, n: dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)]),
        [[2], [3]],
        [[2], [3]],
    ),
    (
        "ALLGATHER_coalesced",
        lambda r, n: dist.all_gather_coalesced(
            [[torch.ones(2), torch.ones(3)] for _ in range(n)], [torch.ones(2), torch.ones(3)]
        ),
        [[2], [3]],
        [[5]] * 3,
    ),
    (
        "all_gather_into_tensor_coalesced",
        lambda r, n: _group().allgather_into_tensor_coalesced([torch.ones(2 * n)], [torch.ones(2)]),
        [[2]],
        [[6]],
    ),
    (
        "reduce_scatter_tensor_coalesced",
        lambda r, n: _group().reduce_scatter_tensor_coalesced([torch.ones(2)], [torch.ones(2 * n)]),
        [[6]],
        [[2]],
    ),
    (
        "ALLGATHER_coalesced",  # of unequal parts
        lambda r, n: dist.all_gather([torch.ones(k + 1) for k in range(n)], torch.ones(r + 1)),
        [[6]],
        [[6]],
    ),
    (
        "REDUCE_SCATTER_coalesced",
        lambda r, n: dist.reduce_scatter(
            torch.ones(r + 1), [torch.ones(k + 1) for k in range(n)]
        ),
        [[6]],
        [[6]],
    ),
    (
        "allreduce_coalesced",
        lambda r, n: fastcomm.fused_all_reduce_([torch.ones(2), torch.ones(3)]),
        [[2], [3]],
        [[2], [3]],
    ),
]  # fmt: skip


def _every_operation(world: World) -> dict[str, Any]:
    world.init()
    for _, call, _, _ in CALLS:
        work = call(world.rank, world.size)
        if isinstance(work, dist.Work):
            work.wait()
    dist.all_reduce(torch.ones(1, dtype=torch.bfloat16), async_op=True).wait()
    if world.rank == 0:
        dist.send(torch.ones(4), 1)
    if world.rank == 1:
        dist.recv(torch.ones(4), 0)
    return dump()


def test_every_operation_has_an_entry_that_torch_understands(tmp_path: Path) -> None:
    found = run_ranks(3, _every_operation, environment=ON)
    for rank, each in enumerate(found):
        entries = each["entries"]
        collectives = [entry for entry in entries if not entry["is_p2p"]]
        names = [f"nccl:{row[0]}" for row in CALLS] + ["nccl:all_reduce"]
        assert [entry["profiling_name"] for entry in collectives] == names
        assert [entry["collective_seq_id"] for entry in collectives] == list(
            range(1, len(names) + 1)
        )
        assert all(entry["state"] == "completed" for entry in entries), entries
        assert all(entry["retired"] and entry["duration_ms"] >= 0 for entry in entries)
        assert all(entry["process_group"] == ("0", "default_pg") for entry in entries)
        assert each["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
        assert "fastcomm" in each["comm_lib_version"] and "nccl:" in each["comm_lib_version"]
        last = collectives[-1]
        assert (last["input_dtypes"], last["output_dtypes"]) == (["BFloat16"], ["BFloat16"])
        messages = [entry["profiling_name"] for entry in entries if entry["is_p2p"]]
        assert messages == [["nccl:send 0->1"], ["nccl:recv 1<-0"], []][rank]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(each))
    for entry, (_, _, given, taken) in zip(found[0]["entries"], CALLS, strict=False):
        assert (entry["input_sizes"], entry["output_sizes"]) == (given, taken), entry
    # Without the messages: the analyser expects all ranks of a group in each.
    for rank, each in enumerate(found):
        each["entries"] = [entry for entry in each["entries"] if not entry["is_p2p"]]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(each))
    data, words = analysed(tmp_path)
    assert len(data.collectives) == len(CALLS) + 1, words
    assert all(each.pass_check and not each.missing_ranks for each in data.collectives), words


def _parts(world: World) -> dict[str, Any]:
    world.init()
    part = dist.new_group([0, 2], group_desc="even ones")
    dist.all_reduce(torch.ones(1))
    if world.rank != 1:
        dist.all_reduce(torch.ones(2), group=part)
    return dump()


def test_groups_have_their_members() -> None:
    found = run_ranks(3, _parts, environment=ON)
    for rank, each in enumerate(found):
        parts = [group for group in each["pg_config"].values() if group["desc"] == "even ones"]
        assert [group["ranks"] for group in parts] == ([] if rank == 1 else ["[0, 2]"])
        status = list(each["pg_status"].values())
        assert status[0]["last_completed_collective"] == 1


def _refused(world: World) -> dict[str, Any]:
    world.init()
    dist.all_reduce(torch.ones(1))
    with pytest.raises(ValueError):
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(3))
    return dump()


def test_what_is_refused_is_not_completed() -> None:
    for found in run_ranks(2, _refused, environment=ON):
        assert [entry["state"] for entry in found["entries"]] == ["completed", "scheduled"]


def _over_gloo(world: World) -> dict[str, Any]:
    world.init()
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    return dump()


def test_calls_over_gloo_have_one_entry_each() -> None:
    for found in run_ranks(2, _over_gloo, environment={**ON, "FASTCOMM_TRANSPORT": "gloo"}):
        names = [entry["profiling_name"] for entry in found["entries"]]
        assert names == ["nccl:all_reduce", "nccl:all_reduce_barrier"]
        assert {entry["state"] for entry in found["entries"]} == {"completed"}


def _files(prefix: str, ranks: list[int]) -> None:
    """Wait for dumps, with what they hold: the second one has stack traces."""

    def are_there() -> bool:
        for rank in ranks:
            try:
                found = pickle.loads(Path(f"{prefix}{rank}").read_bytes())
            except (OSError, EOFError, pickle.UnpicklingError):
                return False
            if not all("frames" in entry for entry in found["entries"]):
                return False
        return True

    until(are_there, f"dumps of ranks {ranks}")


def _one_sleeps(world: World, prefix: str) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    if world.rank == 2:  # calls nothing: its own dump comes from the recorder's thread
        _files(prefix, [0, 1, 2])
        return
    with pytest.raises(CollectiveTimeoutError):
        dist.all_reduce(torch.ones(2))
    _files(prefix, [0, 1, 2])


def test_the_analyser_names_a_rank_that_sleeps(tmp_path: Path) -> None:
    prefix = str(tmp_path / "rank_")
    environment = {"TORCH_FR_DUMP_TEMP_FILE": prefix}
    run_ranks(3, _one_sleeps, prefix, environment=environment, group_timeout=1.0)
    data, words = analysed(tmp_path)
    assert "Not all ranks joining collective, sequence number: 2" in words
    assert "missing ranks: {2}" in words
    assert data.collectives[0].pass_check
    assert "test_flight_recorder.py" in words  # the line of the call


def _one_dies(world: World, prefix: str) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError):
        dist.all_reduce(torch.ones(2))
    _files(prefix, [0, 2])


def test_the_analyser_names_a_rank_that_died(tmp_path: Path) -> None:
    prefix = str(tmp_path / "rank_")
    environment = {"TORCH_FR_DUMP_TEMP_FILE": prefix}
    outcomes = run_outcomes(3, _one_dies, prefix, environment=environment)
    assert [outcome.error for outcome in outcomes][::2] == [None, None], outcomes
    with pytest.raises(AssertionError, match=r"Missing dump files from ranks \{1\}"):
        analysed(tmp_path)
    _, words = analysed(tmp_path, incomplete=True)
    assert "missed FR dumps from ranks ({1})" in words


def _one_raises(world: World, prefix: str) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    try:
        if world.rank == 1:
            raise KeyError("of the program")
        with pytest.raises(fastcomm.FastcommError):
            dist.all_reduce(torch.ones(2))
    except KeyError:
        dist.destroy_process_group()  # with the exception in progress
    _files(prefix, [0, 1])


def test_a_rank_that_raises_writes_a_dump_too(tmp_path: Path) -> None:
    prefix = str(tmp_path / "rank_")
    run_ranks(2, _one_raises, prefix, environment={"TORCH_FR_DUMP_TEMP_FILE": prefix})
    _, words = analysed(tmp_path)
    assert "missing ranks: {1}" in words


def _all_is_well(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    # A thread has its name soon after it is there.
    until(lambda: any("fc-recorder" in name for name in _threads()), "the recorder's thread")
    dist.destroy_process_group()
    fastcomm._C.flight_recorder_dump(False, False)


def _threads() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            yield (task / "comm").read_text()


def test_no_dump_where_nothing_fails(tmp_path: Path) -> None:
    environment = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")}
    run_ranks(2, _all_is_well, environment=environment)
    assert list(tmp_path.iterdir()) == []


def _asked(world: World, folder: str) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    own = fastcomm.dump_flight_recorder(f"{folder}/own_{world.rank}")
    assert len(pickle.loads(own.read_bytes())["entries"]) == 1
    file = Path(f"{folder}/rank_{world.rank}")
    assert not file.exists()
    with Path(f"{folder}/pipe_{world.rank}.pipe").open("wb") as pipe:
        pipe.write(b"1")
    _files(f"{folder}/rank_", [world.rank])
    file.unlink()
    assert fastcomm.dump_flight_recorder() == file and file.exists()


def test_dumps_on_demand(tmp_path: Path) -> None:
    environment = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")}
    environment |= {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_")}
    run_ranks(2, _asked, str(tmp_path), environment=environment)


def _off(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    assert fastcomm._C.flight_recorder_dump(False, False) is None
    with pytest.raises(UnsupportedError, match="TORCH_FR_BUFFER_SIZE"):
        fastcomm.dump_flight_recorder()
    assert not any("fc-recorder" in name for name in _threads())


# torch 2.15 forms no group with what is no number.
WRONG = ["many"] if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15) else []


@pytest.mark.parametrize("value", [None, "0", *WRONG])
def test_off_means_no_entries(value: str | None) -> None:
    run_ranks(2, _off, environment={} if value is None else {"TORCH_FR_BUFFER_SIZE": value})


def _many_threads(world: World) -> dict[str, Any]:
    world.init()
    part = dist.new_group([0, 1])

    def calls(group: Any) -> None:
        for _ in range(300):
            dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()

    threads = [threading.Thread(target=calls, args=(group,)) for group in (None, part)]
    for thread in threads:
        thread.start()
    dumps = [dump() for _ in range(20)]
    for thread in threads:
        thread.join()
    assert all(len(each["entries"]) <= 200 for each in dumps)
    return dump()


def test_the_oldest_entries_make_room_for_new_ones() -> None:
    for found in run_ranks(2, _many_threads, environment=ON):
        entries = found["entries"]
        assert [entry["record_id"] for entry in entries] == list(range(400, 600))
        assert {entry["state"] for entry in entries} == {"completed"}
