"""torch's flight recorder: groups, dumps, and whom torch's analyser names."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.flight import ON, analysed, dump
from support.patience import until
from support.ranks import World, run_outcomes, run_ranks

import fastcomm
from fastcomm.errors import CollectiveTimeoutError, PeerLostError, UnsupportedError

pytestmark = pytest.mark.usefixtures("recorder_as_asked")


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
