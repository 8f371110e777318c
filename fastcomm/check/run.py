"""All paths in turn, each by ranks of its own, and the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastcomm import _native
from fastcomm._measure.launch import LateError, RankError, Start, launch
from fastcomm._measure.rank import Rank
from fastcomm.check.checker import Prepare, Row, Sizes
from fastcomm.check.paths import BETWEEN_DEVICES, ON_THE_HOST, ONE_PROCESS, Path
from fastcomm.check.ranks import run_rank

# Ranks of the paths on the host; paths on devices have one for each device.
DEFAULT_RANKS = 2
PAIR_S = 1.0


@dataclass(frozen=True)
class Options:
    """The checks that are asked for.

    Attributes:
        ranks: of the paths on the host.
        devices: ranks of the paths on devices, None for one per device; below 2 there are no such
            paths, and more ranks than devices share them, which is slow but right.
        budget_s: seconds of timing for each path.
        timeout_s: seconds for each path, from the start of its ranks; each pair of devices adds
            `PAIR_S`. An operation waits a quarter of it for a rank.
        sizes: of messages.
        prepare: called first in each rank; importable, since ranks are processes.
        paths: names of those to check, None for all.
        start: what starts the ranks of a path, None for processes of `launch`.
    """

    ranks: int = DEFAULT_RANKS
    devices: int | None = None
    budget_s: float = 2.0
    timeout_s: float = 120.0
    sizes: Sizes = field(default_factory=Sizes)
    prepare: Prepare | None = None
    paths: frozenset[str] | None = None
    start: Start | None = None


def _ask(rank: Rank, prepare: Prepare | None) -> dict[str, Any]:
    """Return how many devices there are, and what is known of them."""
    if prepare is not None:
        prepare()
    import torch

    from fastcomm._devices.slots import served
    from fastcomm.check import machine

    module = torch.get_device_module(served())
    count = module.device_count() if module.is_available() else 0
    return {"kind": served(), "count": count, "machine": machine.ask()}


def ask_devices(options: Options) -> dict[str, Any]:
    """Return the devices of this machine, as seen by a process that then ends."""
    found: dict[str, Any] = launch(_ask, 1, options.prepare, timeout_s=options.timeout_s)[0]
    return found


def planned(options: Options, devices: int) -> list[tuple[Path, int]]:
    """Return the paths to check, and the number of ranks of each."""
    wanted = devices if options.devices is None else options.devices
    ranks = min(wanted, _native.load().MAX_DEVICES) if devices else 0
    plan = [(ONE_PROCESS, 1), *((path, options.ranks) for path in ON_THE_HOST)]
    plan += [(path, ranks) for path in BETWEEN_DEVICES if ranks >= 2]
    return [row for row in plan if options.paths is None or row[0].name in options.paths]


def run(
    options: Options, plan: Sequence[tuple[Path, int]], on_row: Callable[[Row], None]
) -> list[Row]:
    """Check the paths of a plan; ``on_row`` gets every row as soon as it is available.

    A path whose ranks die, or do not end in time, gets a row of its own: nothing is raised for it.
    """
    rows: list[Row] = []
    for path, ranks in plan:
        under_way = "ranks"
        pairs = ranks * (ranks - 1) // 2 if path.on_devices else 0

        def note(_: int, row: Row, ranks: int = ranks) -> None:
            nonlocal under_way
            if "begins" in row:
                under_way = row["begins"]
                return
            rows.append({**row, "ranks": ranks})
            on_row(rows[-1])

        try:
            launch(
                run_rank,
                ranks,
                path,
                options.sizes,
                options.budget_s,
                options.timeout_s / 4,
                options.prepare,
                timeout_s=options.timeout_s + PAIR_S * pairs,
                on_message=note,
                start=options.start,
            )
        except RankError as error:
            why = str(error).splitlines()
            row = {"path": path.name, "check": under_way, "operation": "", "bytes": 0}
            row.update(verdict="failed", why=" ".join(dict.fromkeys([why[0], why[-1]])))
            row["late"] = isinstance(error, LateError)
            note(error.rank, row)
    return rows
