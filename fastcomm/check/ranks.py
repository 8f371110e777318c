"""The part of each rank of a path: all checks, one after the other."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fastcomm._machine import verdicts as _verdicts
from fastcomm._measure.rank import Rank, begin
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
    settings = {**path.settings, _verdicts.SWITCH: "off"}
    # The user's, or an earlier check's, are unset: the path has its own.
    device = begin(rank, prepare, _verdicts.SETTINGS, settings, path.on_devices)
    shares = path.on_devices and rank.size > torch.get_device_module(device).device_count()
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
        speeds.balance(checker)
        results.contexts(checker)
    # Last, since stock backends are at work, too.
    checker.begin(speeds.CHECK)
    speeds.speed(checker, group, budget_s)
