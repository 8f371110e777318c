"""docs/examples/hosts.py: stock DDP over two hosts, started as docs/frameworks/hosts.md says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.namespaces import Host
from support.ranks import World, run_ranks
from support.torchrun import on_hosts, torchrun_on

pytestmark = pytest.mark.serial  # network namespaces

SCRIPT = str(Path(__file__).resolve().parents[3] / "docs/examples/hosts.py")
RANKS = 2  # on each host


def _meeting(hosts: list[Host], port: int) -> dict[str, str]:
    return {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(port)}


def _torchrun(hosts: list[Host]) -> str:
    return torchrun_on(hosts, 29740, SCRIPT, ranks=RANKS)


def _torchrun_static(hosts: list[Host]) -> str:
    words = ["-m", "torch.distributed.run", f"--nnodes={len(hosts)}", f"--nproc-per-node={RANKS}"]
    words += [f"--master-addr={hosts[0].address}", "--master-port=29741"]
    return on_hosts(
        (host, [*words, f"--node-rank={number}", SCRIPT], {}) for number, host in enumerate(hosts)
    )


def _spawn(hosts: list[Host]) -> str:
    variables = {**_meeting(hosts, 29742), "WORLD_SIZE": str(len(hosts))}
    return on_hosts(
        (host, [SCRIPT, str(RANKS)], {**variables, "RANK": str(number)})
        for number, host in enumerate(hosts)
    )


def _of_slurm(hosts: list[Host], rank: int) -> dict[str, str]:
    """Return what Slurm sets for a task; there is none here."""
    size = len(hosts) * RANKS
    return {
        **_meeting(hosts, 29743),
        "SLURM_NTASKS": str(size),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % RANKS),
        "SLURM_NODEID": str(rank // RANKS),
    }


def _srun(hosts: list[Host]) -> str:
    return on_hosts(
        (host, [SCRIPT], _of_slurm(hosts, rank))
        for rank, host in enumerate(host for host in hosts for _ in range(RANKS))
    )


def _check(said: str) -> None:
    told = re.findall(r"rank (\d), (\w+): weights sum to (\S+)", said)
    assert sorted(rank for rank, *_ in told) == ["0", "1", "2", "3"], said
    assert {how for _, how, _ in told} == {"composed"}, said
    assert len({weights for *_, weights in told}) == 1, said


@pytest.mark.release
@pytest.mark.parametrize("start", [_torchrun, _torchrun_static, _spawn, _srun])
def test_every_way_to_start(hosts: list[Host], start: Callable[[list[Host]], str]) -> None:
    _check(start(hosts))


def _in_a_rank(world: World, hosts: list[Host], how: str) -> str:
    """Run the script in a process that has torch loaded, which is most of a start."""
    host = world.rank // RANKS
    hosts[host].enter(name_interface=False)
    sys.argv = [SCRIPT]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        if how == "srun":
            os.environ.update(_of_slurm(hosts, world.rank))
            runpy.run_path(SCRIPT, run_name="__main__")
        else:
            os.environ.update(_meeting(hosts, 29744))
            runpy.run_path(SCRIPT)["spawned"](world.rank % RANKS, host, len(hosts), RANKS)
    return said.getvalue()


@pytest.mark.parametrize("how", ["srun", "spawn"])
def test_ranks_that_have_started(hosts: list[Host], how: str) -> None:
    _check("".join(run_ranks(len(hosts) * RANKS, _in_a_rank, hosts, how)))
