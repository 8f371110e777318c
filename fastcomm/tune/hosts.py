"""``fastcomm tune --hosts``: a job over several hosts measures what suits the links between them.

Candidates are groups of all ranks, side by side; the default group, which is not timed, is for what
ranks have to agree on. What is found is written down on each host, since any of them may have
rank 0 next time, whose values count (csrc/coll/host_thresholds.h).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fastcomm import _native
from fastcomm._distributed.backend import backend_of
from fastcomm._machine import tuning as _tuning
from fastcomm._measure.launch import run_in_job
from fastcomm._measure.objects import all_gather_object
from fastcomm._measure.rank import Rank
from fastcomm.tune.candidates import BETWEEN_HOSTS, Step
from fastcomm.tune.ranks import Place, choose

# Of every group. What goes wrong is known earlier, but for a link that is only slow.
TIMEOUT = timedelta(minutes=5)
_ROTATION = 0  # slots inside a host are as large as elsewhere, and the wire is slower by far


class NotComposedError(RuntimeError):
    """Nothing is composed of what hosts do, so there is nothing to choose."""


@dataclass(frozen=True)
class Found:
    """What a job has measured.

    Attributes:
        hosts: the ranks of each.
        values: those that differ from the defaults, by the names of `_tuning.HOSTS_SETTINGS`.
        kept: the file of each host, and the reason why it could not be written, or ``""``; empty
            if nothing was to be kept.
    """

    hosts: list[list[int]]
    values: dict[str, int]
    kept: list[tuple[str, str]]


@dataclass(frozen=True)
class Options:
    """The measurements that are asked for.

    Attributes:
        budget_s: seconds of timing, about; ten calls of each kind are made in any case.
        keep: write down what is found.
        steps: choices.
    """

    budget_s: float = 60.0
    keep: bool = True
    steps: tuple[Step, ...] = BETWEEN_HOSTS


def run(
    options: Options, on_row: Callable[[dict[str, Any]], None], on_begin: Callable[[str], None]
) -> Found:
    """Measure the job that this process is a rank of; rank 0 alone gets rows.

    Args:
        options: what to measure.
        on_row: gets each candidate's row when a choice is made.
        on_begin: gets what begins, for people.

    Raises:
        NotComposedError: on every rank.
        RankError: a rank failed.
    """

    def note(message: Any) -> None:
        if "begins" in message:
            on_begin(message["begins"])
        else:
            on_row(message)

    found = run_in_job(run_rank, options, on_message=note)
    if isinstance(found, str):
        raise NotComposedError(found)
    assert isinstance(found, Found)
    return found


def messages(options: Options) -> int:
    """Return how often ``on_begin`` is called."""
    return sum(len(step.messages) for step in options.steps)


def run_rank(rank: Rank, options: Options) -> Found | str:
    """Measure on one rank; rank 0 reports. Return what was found, or why nothing is measured."""
    logging.getLogger("fastcomm").setLevel(logging.ERROR)  # of each candidate's group
    dist.init_process_group("fastcomm", timeout=TIMEOUT)
    control = dist.group.WORLD
    assert control is not None
    backend = backend_of(control, behind_checks=True)
    assert backend is not None
    hosts: list[list[int]] = backend.hosts
    found: Found | str = f"--hosts: {backend.why_not_composed}; nothing is composed of hosts"
    if hosts:
        values = _measured(rank, options, hosts)
        found = Found(hosts, values, _keep(hosts, values, control) if options.keep else [])
    dist.barrier()
    dist.destroy_process_group()
    return found


def _measured(rank: Rank, options: Options, hosts: Sequence[Sequence[int]]) -> dict[str, int]:
    """Choose in all steps, and return the values that differ from the defaults."""
    shape = (len(hosts), len(hosts[0]))

    def form(values: dict[str, int]) -> dist.ProcessGroup:
        _native.load().set_host_tuning(*shape, **values)
        group: dist.ProcessGroup = dist.new_group(backend="fastcomm", timeout=TIMEOUT)
        return group

    place = Place(torch.device("cpu"), f"{shape[0]} x {shape[1]}", form, _ROTATION, confirms=True)
    chosen: dict[str, int] = {}
    for step in options.steps:
        chosen = choose(rank, step, chosen, place, step.share * options.budget_s)
    return chosen


def _keep(
    hosts: Sequence[Sequence[int]], values: dict[str, int], control: dist.ProcessGroup
) -> list[tuple[str, str]]:
    """Write the values on each host, and return `Found.kept`, the same on all ranks."""
    own = ["", ""]
    for ranks in hosts:
        if dist.get_rank() == ranks[0]:
            own = [str(_tuning.file()), ""]
            try:  # values for other numbers of ranks and hosts stay
                _tuning.write({**_tuning.read(), (len(hosts), len(ranks)): values})
            except OSError as error:
                own[1] = str(error)
        dist.barrier(group=control)  # hosts may share a home, and so the file: one after the other
    told = all_gather_object(own, control)
    return [(told[ranks[0]][0], told[ranks[0]][1]) for ranks in hosts]
