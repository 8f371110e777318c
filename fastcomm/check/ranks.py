"""What each rank of a path does: all checks, one after the other."""

from __future__ import annotations

import logging
import os
import warnings

import torch
import torch.distributed as dist

from fastcomm._machine import verdicts as _verdicts
from fastcomm.bench.rank import Rank
from fastcomm.check import results, speeds
from fastcomm.check.checker import Checker, Prepare, Sizes
from fastcomm.check.paths import Path


def run_rank(
    rank: Rank,
    path: Path,
    sizes: Sizes,
    budget_s: float,
    patience_s: float,
    prepare: Prepare | None,
) -> None:
    """Check one path. ``prepare`` is called first, before anything native is loaded."""
    for name in _verdicts.SETTINGS:  # the user's, or an earlier check's: the path has its own
        os.environ.pop(name, None)
    os.environ.update(path.settings)
    os.environ[_verdicts.SWITCH] = "off"
    if prepare is not None:
        prepare()
    device, shares = torch.device("cpu"), False
    if path.on_devices:
        from fastcomm._devices.slots import served

        module = torch.get_device_module(served())
        count = module.device_count()
        device = torch.device(served(), rank.rank % count)
        module.set_device(device)
        shares = rank.size > count
    # Names that torch has replaced: old versions know no others.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # What warnings would say is in the report.
    logging.getLogger("fastcomm").setLevel(logging.ERROR)
    dist.init_process_group("gloo")
    checker = Checker(rank, path, device, sizes, shares, patience_s)
    _run_checks(checker, budget_s)
    # Not after an exception: the others may be anywhere.
    dist.barrier(group=checker.control)
    dist.destroy_process_group()


def _run_checks(checker: Checker, budget_s: float) -> None:
    if checker.path.alone:
        results.primitives(checker)
        checker.begin(speeds.CHECK)
        speeds.primitives(checker, budget_s)
        return
    group = checker.make_group()
    if not results.is_taken(checker, group):
        return
    results.operations(checker, group)
    results.bits(checker, group)
    results.two_at_once(checker, group)
    if checker.path.on_devices:
        results.under_graph(checker, group)
    results.under_load(checker, group)
    if checker.path.on_devices:
        speeds.pairs(checker)
    # Last, since stock backends are at work, too.
    checker.begin(speeds.CHECK)
    speeds.speed(checker, group, budget_s)
