"""Launches of four ranks that play many trials, each in one of several groups."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from support.patience import OPERATION
from support.ranks import RankFailedError, World, run_ranks

RANKS = 4
GROUPS = [(0,), (3,), (0, 1), (1, 3), (0, 2, 3), (1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
HOURS = 2 * 3600.0  # seconds, for any number of trials
LISTED = 5  # failures that are shown
BESIDE = timedelta(seconds=60)  # Gloo's timeout


class Drawn(Protocol):
    """What a trial does.

    Attributes:
        name: its kind, which is counted.
        members: the global ranks of its group, one of `GROUPS`.
    """

    name: str
    members: tuple[int, ...]


@dataclass
class Played:
    """How a trial ended on one rank.

    Attributes:
        wrong: what fastcomm did wrong, if anything.
        error: whether it raised where it should not: peers may wait for what the rank did not do.
        difference: how fastcomm differed from Gloo.
    """

    wrong: str = ""
    error: bool = False
    difference: str = ""


@dataclass
class Found:
    """What a rank, or all of them, found in all trials.

    Attributes:
        played: the number of calls of ranks, by name.
        failures: what fastcomm did wrong.
        differences: how fastcomm differs from Gloo, with the numbers of the trials.
    """

    played: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    differences: dict[str, list[int]] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        self.played += other.played
        self.failures += other.failures
        for text, seeds in other.differences.items():
            self.differences.setdefault(text, []).extend(seeds)


@dataclass
class Trials:
    """A kind of trials: functions of modules, so that they can be pickled.

    Attributes:
        draw: gives a trial for a number.
        play: plays a trial as a rank of a group, over fastcomm and over Gloo.
    """

    draw: Callable[[int], Any]
    play: Callable[[Any, int, dist.ProcessGroup, dist.ProcessGroup], Played]


def _play_all(world: World, trials: Trials, seeds: Iterable[int], folder: str) -> Found:
    """Play the trials on this rank."""
    world.init()
    own, gloo = [], []
    for members in GROUPS:
        own.append(dist.new_group(members, timeout=timedelta(seconds=OPERATION)))
        gloo.append(dist.new_group(members, timeout=BESIDE, backend="gloo"))
    found = Found()
    for seed in seeds:
        drawn: Drawn = trials.draw(seed)
        if world.rank not in drawn.members:
            continue
        number, rank = GROUPS.index(drawn.members), drawn.members.index(world.rank)
        choice = random.Random(f"{seed} {world.rank}")
        Path(folder, f"rank {world.rank}").write_text(f"trial {seed}: {drawn}")
        time.sleep(choice.random() / 500 if choice.random() < 0.3 else 0.0)
        played = trials.play(drawn, rank, own[number], gloo[number])
        found.played[drawn.name] += 1
        if played.difference:
            found.differences.setdefault(played.difference, []).append(seed)
        if played.wrong:
            found.failures.append(f"trial {seed}, rank {world.rank}: {drawn}: {played.wrong}")
        if played.error:
            break  # peers that wait for this rank end as well
    return found


def launch(
    trials: Trials, seeds: Iterable[int], environment: Mapping[str, str] | None = None
) -> Found:
    """Play trials, and return what all ranks found.

    Args:
        environment: settings of fastcomm on all ranks.

    Raises:
        RankFailedError: a rank died or did not end; names the last trial of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            per_rank = run_ranks(
                RANKS, _play_all, trials, list(seeds), folder,
                timeout=HOURS, environment=environment,
            )  # fmt: skip
        except RankFailedError as error:
            last = [f"{path.name} was in {path.read_text()}" for path in Path(folder).iterdir()]
            raise RankFailedError("\n".join([str(error), *sorted(last)])) from None
    found = Found()
    for each in per_rank:
        found.add(each)
    return found


def check(
    trials: Trials, first: int, count: int, environment: Mapping[str, str] | None = None
) -> Found:
    """Play trials that must not fail, and of which some must have been played."""
    found = launch(trials, range(first, first + count), environment)
    assert not found.failures, "\n".join(found.failures[:LISTED])
    assert sum(found.played.values()) > count
    return found


def command(trials: Trials, description: str | None) -> None:
    """Play trials from a shell, and list failures and differences."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    found = launch(trials, range(options.first, options.first + options.count))
    print(f"{sum(found.played.values())} trials of ranks: {dict(found.played)}")
    for text, numbers in sorted(found.differences.items()):
        print(f"differs in {len(numbers)}, such as trial {numbers[0]}: {text}")
    for text in found.failures:
        print(f"FAILED {text}")
