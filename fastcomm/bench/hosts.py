"""Several hosts: links between them and inside them, and what each level of an operation takes.

A job that runs on several hosts measures itself (``fastcomm bench --hosts`` under torchrun). Its
default group is composed of the hosts (docs/adr/0043-hosts-composed.md); beside it there are a
group of each host's ranks, Gloo of all ranks, and another Gloo that only controls.

Rows are of three kinds. Those with ``host`` are of what is inside one, those with ``link`` of what
is between two (`fastcomm.bench.links`). The others are those of a sweep, by the level that they
are of: ``fastcomm`` is the whole call, ``inside`` the hosts' part of it alone, ``gloo`` all of it
over Gloo. A row of ``fastcomm`` says besides what the wire takes at least, what remains, and which
of the three takes longest.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fastcomm._distributed import gloo
from fastcomm._distributed.backend import backend_of
from fastcomm._measure.cases import CASES, Case
from fastcomm._measure.cases.base import (
    Call,
    all_gather_single,
    count_wrong,
    pattern,
    reduce_scatter_single,
)
from fastcomm._measure.contenders import Contender, NotServedError
from fastcomm._measure.launch import run_in_job
from fastcomm._measure.objects import all_gather_object
from fastcomm._measure.rank import Rank
from fastcomm._measure.timing import agree
from fastcomm.bench.levels import levels_of, partials_of, wire_us
from fastcomm.bench.links import Row, measure_host, measure_link
from fastcomm.bench.sweep import SweepOptions, measure_point, share_of

# Of every group. What goes wrong is known earlier, but for a link that is only slow.
TIMEOUT = timedelta(minutes=5)


class OneHostError(RuntimeError):
    """There is no link to measure: all ranks share memory."""


class Host(NamedTuple):
    """Ranks that share memory, ascending, and the group of them, of use on these alone."""

    ranks: list[int]
    group: Any


def run_hosts(options: SweepOptions, on_row: Callable[[Row], None]) -> None:
    """Measure the job that this process is a rank of; rank 0 alone gets rows.

    Args:
        options: ``ops`` has all_reduce alone; of the others sizes, budget, iterations and check
            count.
        on_row: gets each row as soon as it is there.

    Raises:
        OneHostError: on every rank.
        RankError: a rank failed.
    """
    why_not = run_in_job(run_rank, options, on_message=on_row)
    if why_not:
        raise OneHostError(why_not)


def run_rank(rank: Rank, options: SweepOptions) -> str:
    """Measure on one rank; rank 0 reports. Return why nothing is measured, ``""`` if it is."""
    logging.getLogger("fastcomm").setLevel(logging.ERROR)  # what warnings say is in the table
    dist.init_process_group("fastcomm", timeout=TIMEOUT)
    whole = dist.group.WORLD
    assert whole is not None
    places = [
        gloo.Place(**place)
        for place in all_gather_object(asdict(gloo.own_place([os.environ["MASTER_ADDR"]])), whole)
    ]
    _let_gloo_find(rank.rank, places)
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    hosts = sorted(
        _hosts([place.network for place in places], control), key=lambda each: each.ranks
    )
    if len(hosts) > 1:
        for row in _rows(hosts, control, options):
            if rank.rank == 0:
                rank.report(row)
    dist.barrier(group=control)
    dist.destroy_process_group()
    if len(hosts) > 1:
        return ""
    return f"--hosts: {rank.size} ranks that share memory are one host; start it on each of several"


def _let_gloo_find(rank: int, places: list[gloo.Place]) -> None:
    """Name the network interface for torch's own Gloo, as fastcomm's finds it."""
    address = gloo.own_address(rank, places)
    if places[rank].chosen or address is None:
        return
    for _, name in socket.if_nameindex():
        if address in gloo.addresses_of(name):
            os.environ["GLOO_SOCKET_IFNAME"] = name


def _hosts(networks: Sequence[str], control: dist.ProcessGroup) -> Iterator[Host]:
    """Find out by trying which ranks share memory; those of one network are likely to."""
    for network in dict.fromkeys(networks):
        ranks = [rank for rank, other in enumerate(networks) if other == network]
        likely = _form(ranks)
        if _shares(likely, control):
            yield likely
            continue
        parts: list[list[int]] = []
        for rank in ranks:
            pairs = ((part, _form([part[0], rank])) for part in parts)
            known = next((part for part, pair in pairs if _shares(pair, control)), None)
            if known is None:
                parts.append([rank])
            else:
                known.append(rank)
        yield from map(_form, parts)


def _form(ranks: list[int]) -> Host:
    return Host(ranks, dist.new_group(ranks, backend="fastcomm", timeout=TIMEOUT))


def _shares(host: Host, control: dist.ProcessGroup) -> bool:
    """Return whether a group's ranks share memory; the same on all ranks."""
    found = torch.ones(1)
    if dist.get_rank() in host.ranks:
        backend = backend_of(host.group, behind_checks=True)
        found[0] = backend is not None and backend.native
    dist.all_reduce(found, dist.ReduceOp.MIN, group=control)
    return bool(found)


def _rows(hosts: list[Host], control: dist.ProcessGroup, options: SweepOptions) -> Iterator[Row]:
    """Measure all there is; the rows are the same on all ranks."""
    start, iterations = time.perf_counter(), options.iterations
    pairs = list(itertools.combinations(range(len(hosts)), 2))
    points = len(hosts) + len(pairs) + len(options.sizes)
    left = iter(range(points, 0, -1))

    def share_s() -> float:
        left_s = options.budget_s - (time.perf_counter() - start)
        share = share_of(options.budget_s, points, left_s, next(left))
        return agree([int(share * 1000)], control)[0] / 1000

    over_gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    for number, host in enumerate(hosts):
        found = measure_host(host.ranks, host.group, control, share_s(), iterations)
        yield {"host": number, "ranks": host.ranks, **found}
    links = []
    for one, other in pairs:
        pair = (hosts[one].ranks[0], hosts[other].ranks[0])
        found = measure_link(pair, over_gloo, control, share_s(), iterations)
        links.append({"link": [one, other], "ranks": list(pair), **found})
        yield links[-1]
    own = next(host for host in hosts if dist.get_rank() in host.ranks)
    partials = max(partials_of(host.ranks, options.ranks) for host in hosts)
    backend = backend_of(dist.group.WORLD, behind_checks=True)
    assert backend is not None
    short_bytes, _ = backend.host_thresholds
    by_first = short_bytes if partials == 1 else 0
    levels = [
        Contender("fastcomm", dist.group.WORLD),
        Inside(own, by_first, max(len(host.ranks) for host in hosts)),
        Contender("gloo", over_gloo),
    ]
    not_composed = backend.why_not_composed
    for size in options.sizes:
        case = CASES["all_reduce"](size, torch.float32, dist.get_rank(), options.ranks)
        rows = measure_point([case], levels, control, options, share_s(), torch.device("cpu"))
        if not_composed:
            rows[0]["not_composed"] = not_composed
        else:
            least_us = wire_us(case.nbytes, len(hosts), partials, links, short_bytes)
            rows[0].update(levels_of(rows, least_us))
        yield from rows


class Inside(Contender):
    """The steps of an ``all_reduce`` inside each host, all hosts at once.

    Args:
        host: this rank's.
        by_first: those of at most so many bytes go by the first rank of each host, as the
            composed group's do.
        most: ranks of the host with the most.
    """

    def __init__(self, host: Host, by_first: int, most: int) -> None:
        super().__init__("inside", host.group)
        self._ranks, self._by_first, self._most = host.ranks, by_first, most

    def bind(self, case: Case) -> Call:
        return self._made(case)[0]

    def check(self, case: Case, control: dist.ProcessGroup) -> int:
        call, summed = self._made(case)
        parts = [pattern(case.numel, case.dtype, rank) for rank in self._ranks]
        summed[: case.numel] = parts[dist.get_rank(self.group)]
        call()
        return count_wrong(summed[: case.numel], torch.stack(parts).sum(0))

    def _made(self, case: Case) -> tuple[Call, torch.Tensor]:
        """Return the call, and the tensor that it sums."""
        group, ranks = self.group, len(self._ranks)
        if self._most == 1:  # on all ranks
            raise NotServedError("each host has one rank")
        part = torch.zeros(-(-case.numel // ranks), dtype=case.dtype)
        summed = torch.zeros(ranks * len(part), dtype=case.dtype)

        def by_first_ranks() -> None:
            dist.reduce(summed, self._ranks[0], group=group)
            dist.broadcast(summed, self._ranks[0], group=group)

        def by_slices() -> None:
            reduce_scatter_single(part, summed, group=group)
            all_gather_single(summed, part, group=group)

        short = case.nbytes <= self._by_first
        return (by_first_ranks if short else by_slices), summed
