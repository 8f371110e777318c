"""Records of a job's ranks that are kept when a group fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import TRANSPORTS
from support.patience import until
from support.ranks import World, run_outcomes, run_ranks

import fastcomm
from fastcomm._commands import trace
from fastcomm._records import saved
from fastcomm._records.saved import Saved
from fastcomm.errors import CollectiveTimeoutError, PeerLostError


def _file(folder: str) -> Path:
    """Return the file of records in a folder, once it is there."""
    until(lambda: bool(list(Path(folder).glob("*.records"))), "a file of records")
    (found,) = Path(folder).glob("*.records")
    return found


def _loaded(folder: Path) -> Saved:
    found = saved.load(_file(str(folder)))
    assert [each.name for each in folder.iterdir()] == [_file(str(folder)).name]
    return found


def _one_sleeps(world: World, folder: str) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    if world.rank != 2:
        with pytest.raises(CollectiveTimeoutError):
            dist.all_reduce(torch.ones(2))
    _file(folder)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_timeout(tmp_path: Path, transport: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made"  # by the rank that writes first
    environment = {"FASTCOMM_DUMP": str(folder), **TRANSPORTS[transport]}
    run_ranks(3, _one_sleeps, str(folder), environment=environment, group_timeout=1.0)
    found = _loaded(folder)
    assert (found.host, found.why) == (os.uname().nodename, "a process group has failed")
    numbers = [rank.number for rank in found.ranks]
    if transport == "gloo":  # its ranks share no memory
        assert len(numbers) == 1 and numbers[0] in (0, 1, 2)
        return
    assert numbers == [0, 1, 2]
    assert found.ranks[2].snapshot.calls[-1].outcome == "ok"
    late = [call for call in found.ranks[0].snapshot.calls if call.count == 2]
    assert [call.started for call in late] == [None]
    assert trace.main([str(_file(str(folder))), "--json"]) == 0
    assert '"counted": 1' in capsys.readouterr().out


def _one_dies(world: World, folder: str) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError):
        dist.all_reduce(torch.ones(2))
    _file(folder)


def test_a_rank_that_died_is_in_it(tmp_path: Path) -> None:
    outcomes = run_outcomes(
        3, _one_dies, str(tmp_path), environment={"FASTCOMM_DUMP": str(tmp_path)}
    )
    assert [outcome.error for outcome in outcomes][::2] == [None, None], outcomes
    found = _loaded(tmp_path)
    assert [rank.number for rank in found.ranks] == [0, 1, 2]
    assert found.ranks[1].state in ("gone", "ended")
    assert found.ranks[1].snapshot.calls[-1].operation == "all_reduce"


def _all_is_well(world: World, folder: str) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    assert fastcomm._C.flight_recorder_dump(False, False) is None  # which nobody asked for
    assert not Path(folder).exists()


def test_nothing_is_kept_where_nothing_fails(tmp_path: Path) -> None:
    folder = str(tmp_path / "made")
    run_ranks(2, _all_is_well, folder, environment={"FASTCOMM_DUMP": folder})
    assert not Path(folder).exists()


def _cannot(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    if world.rank == 0:
        with pytest.raises(CollectiveTimeoutError):
            dist.all_reduce(torch.ones(2))
        world.tell("done")
    else:
        world.hear("done")


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {"FASTCOMM_DUMP": str(tmp_path / "file")}
    run_ranks(2, _cannot, environment=environment, group_timeout=2.0)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
