"""A group whose ranks share no memory runs on Gloo as a whole or in part, and says why."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.namespaces import Host, switched_hosts, why_no_switch
from support.ranks import World, run_ranks
from support.reductions import reduced, same
from support.stores import join_hosts, join_over
from torch.nn.parallel import DistributedDataParallel

import fastcomm

pytestmark = pytest.mark.serial  # network namespaces


class _Log(logging.Handler):
    """Keeps what the package's logger says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("fastcomm").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname}: {record.getMessage()}")


def _train(rank: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    for _ in range(3):
        optimizer.zero_grad()
        ddp(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def _report(rank: int, size: int, log: _Log) -> dict[str, Any]:
    """Use the default group of backend fastcomm, and say what it is."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    total = torch.full((100_000,), float(rank))
    dist.all_reduce(total)
    average = torch.full((4,), float(rank))
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    parts = [torch.empty(3) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank)))
    root = torch.full((5,), float(rank))
    dist.broadcast(root, src=size - 1)
    dist.barrier()
    assert torch.equal(total, torch.full((100_000,), float(sum(range(size)))))
    assert torch.equal(average, torch.full((4,), sum(range(size)) / size))
    assert [part.tolist() for part in parts] == [[float(peer)] * 3 for peer in range(size)]
    assert torch.equal(root, torch.full((5,), float(size - 1)))
    return {
        "native": backend.native,
        "why": backend.why_not_native,
        "explain": str(fastcomm.explain("all_reduce", total)),
        "log": log.lines,
    }


def _join(world: World, master: str, port: int) -> None:
    store = dist.TCPStore(master, port, world.size, world.rank == 0, timeout=world.timeout)
    join_over(store, world)


def _on_two_hosts(world: World, hosts: list[Host], port: int) -> dict[str, Any]:
    log = _Log()
    hosts[world.rank * 2 // world.size].enter()
    _join(world, hosts[0].address, port)
    report = _report(world.rank, world.size, log) if world.backend == "fastcomm" else {}
    report["weights"] = [weight.tolist() for weight in _train(world.rank)]
    dist.barrier()
    return report


def _on_one_host(world: World) -> list[list[float]]:
    world.init()
    return [weight.tolist() for weight in _train(world.rank)]


@pytest.mark.parametrize("size", [2, 4])
def test_two_hosts_say_what_they_run_on(hosts: list[Host], size: int) -> None:
    reports = run_ranks(size, _on_two_hosts, hosts, 29500 + 10 * size)
    for report in reports:
        assert not report["native"]
        assert "shares no memory with" in report["why"]
        assert report["why"] == reports[0]["why"]
        assert "Gloo" in report["explain"]
        for ranks in ("rank 0 on", "rank 1 on") if size == 2 else ("ranks 0, 1 on", "ranks 2, 3"):
            assert ranks in report["why"]
        if size == 2:
            assert report["why"] in report["explain"]
        else:
            assert "2 hosts of 2 ranks" in report["explain"]
        assert report["weights"] == reports[0]["weights"]
    (warning,) = reports[0]["log"]
    assert warning.startswith("WARNING")
    assert f"{size} ranks runs on {'Gloo' if size == 2 else 'shared memory'}" in warning
    assert reports[0]["why"] in warning
    assert not any(report["log"] for report in reports[1:])
    if size == 2:
        gloo = run_ranks(size, _on_two_hosts, hosts, 29501 + 10 * size, backend="gloo")
        wanted = [report["weights"] for report in gloo]
    else:
        wanted = run_ranks(size, _on_one_host)
    assert [report["weights"] for report in reports] == wanted


def _without_interface(world: World, hosts: list[Host], port: int) -> list[list[str]]:
    """Form groups over stores of several kinds, and return what happened in which order."""
    log = _Log()
    own = hosts[world.rank * 2 // world.size]
    own.enter(name_interface=False)
    inner = dist.ProcessGroupGloo

    class Recorded(inner):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            log.lines.append("Gloo connects")
            super().__init__(*arguments, **named)

    dist.ProcessGroupGloo = Recorded
    told = []
    at_home = "localhost" if own is hosts[0] else hosts[0].address
    masters = ["file", hosts[0].address, at_home, hosts[0].address6]
    for number, master in enumerate(master for master in masters if master):
        log.lines.clear()
        if master == "file":
            os.environ["MASTER_ADDR"] = hosts[0].address
            world.init()
        else:
            os.environ.pop("MASTER_ADDR", None)
            _join(world, master, port + number)
        dist.all_reduce(torch.ones(3))
        part = dist.new_group([0, world.size - 1])  # with ranks of both
        if part is not dist.GroupMember.NON_GROUP_MEMBER:
            total = torch.ones(3)
            dist.all_reduce(total, group=part)
            assert total.tolist() == [2.0] * 3
        told.append(list(log.lines))
        dist.barrier()
        dist.destroy_process_group()
    return told


def test_two_hosts_find_each_other_without_the_name_of_an_interface(hosts: list[Host]) -> None:
    told = run_ranks(3, _without_interface, hosts, 29560, group_timeout=30)
    groups = len(told[0])
    assert told[1] == [["Gloo connects"]] * groups
    assert told[2] == [["Gloo connects"] * 2] * groups
    for lines in told[0]:
        assert lines[1::2] == ["Gloo connects"] * 2  # so each warning came before
        for warning, apart in zip(lines[::2], ("rank 2", "rank 1"), strict=True):
            for part in ("fastcomm: this group", f"{apart} on another host", "GLOO_SOCKET_IFNAME"):
                assert part in warning, warning
            assert hosts[0].address in warning or hosts[0].address6 in warning
            assert hosts[1].address in warning or hosts[1].address6 in warning


def _some_name_it(world: World, hosts: list[Host], named: list[int], port: int) -> list[str]:
    """Form groups of two hosts' ranks, of which some alone name the interface."""
    log = _Log()
    hosts[world.rank * 2 // world.size].enter(name_interface=world.rank in named)
    for number, master in enumerate(at for at in (hosts[0].address, hosts[0].address6) if at):
        _join(world, master, port + number)
        for ranks in (list(range(world.size)), [0, 3], [1, 2], [0, 1, 3]):
            part = dist.new_group(ranks)
            if world.rank in ranks:
                total = torch.full((3,), float(world.rank))
                dist.all_reduce(total, group=part)
                assert total.tolist() == [float(sum(ranks))] * 3, ranks
        dist.barrier()
        dist.destroy_process_group()
    return log.lines


@pytest.mark.parametrize("named", [[0], [3], [1, 2], [0, 1], [1, 2, 3]], ids=str)
def test_some_ranks_alone_may_name_the_interface(hosts: list[Host], named: list[int]) -> None:
    port = 29600 + 10 * sum(1 << rank for rank in named)
    told = run_ranks(4, _some_name_it, hosts, named, port, group_timeout=30)
    by_name = f"Gloo uses GLOO_SOCKET_IFNAME={hosts[0].interface} here"
    for rank in (0, 1):  # the first of groups on two hosts
        assert told[rank]
        for warning in told[rank]:
            assert (by_name in warning) == (rank in named), warning
            assert rank in named or "Gloo uses the interface with the address" in warning


def _with_transport(world: World, transports: list[str]) -> dict[str, Any]:
    os.environ["FASTCOMM_TRANSPORT"] = transports[world.rank % len(transports)]
    log = _Log()
    world.init()
    return {**_report(world.rank, world.size, log), "weights": _train(world.rank)[0].tolist()}


@pytest.mark.parametrize("transports", [["gloo"], ["auto", "gloo"], ["memfd", "posix", "gloo"]])
def test_one_rank_without_shared_memory_is_enough_for_gloo(transports: list[str]) -> None:
    reports = run_ranks(3, _with_transport, transports)
    for report in reports:
        assert not report["native"]
        assert "FASTCOMM_TRANSPORT=gloo" in report["why"]
        assert report["why"] == reports[0]["why"]
        assert report["why"] in report["explain"]
        assert report["weights"] == reports[0]["weights"]
    assert len(reports[0]["log"]) == 1


@pytest.mark.parametrize("transports", [["posix"], ["memfd"], ["memfd", "posix"]])
def test_every_kind_of_shared_memory_works(transports: list[str]) -> None:
    reports = run_ranks(3, _with_transport, transports)
    for rank, report in enumerate(reports):
        assert report["native"], report["why"]
        assert transports[rank % len(transports)] in report["explain"]
        assert not report["log"]
        assert report["weights"] == reports[0]["weights"]


def _many(world: World, hosts: list[Host], port: int, places: str) -> tuple[str, bool]:
    torch.set_num_threads(1)
    join_hosts(world, hosts, port, places)
    terms = [torch.arange(30_000.0) * (peer + 1) / 3 for peer in range(world.size)]
    total = terms[world.rank].clone()
    dist.all_reduce(total)
    algorithm = fastcomm.explain("all_reduce", total).algorithm
    dist.barrier()
    return algorithm, same(total, reduced(terms, "sum"), "sum")


def test_more_ranks_than_one_host_may_have() -> None:
    if (reason := why_no_switch()) is not None:
        pytest.skip(reason)
    with switched_hosts(5) as hosts:
        told = run_ranks(80, _many, hosts, 29980, "".join(str(rank // 16) for rank in range(80)))
    assert told == [("composed", True)] * 80
