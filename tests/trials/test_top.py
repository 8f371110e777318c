"""``fastcomm top`` names the rank that holds up a job, in random trials.

FC_TOP_SEED and FC_TOP_TRIALS choose others, or more: a trial is its number's, so that
``FC_TOP_SEED=17 FC_TOP_TRIALS=1`` plays trial 17 again.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.namespaces import Host, why_no_mounts
from support.patience import ENDS
from trials.held_up import GONE, KILLED, KILLS, LOOPS, RANKS, SLEEPS, STOPPED, Trial, drawn
from trials.held_up_judge import Asked, trouble, verdict_trouble
from trials.held_up_pool import Played, Pool, Top, Where

pytestmark = pytest.mark.serial  # the time of each answer is looked at

SEED = int(os.environ.get("FC_TOP_SEED", "0"))
TRIALS = int(os.environ.get("FC_TOP_TRIALS", "30"))
IN_RELEASES = 1000
JOBS = 2  # at the same time
# Seconds from the start of the interpreter: as is usual, and on a crowded machine.
USUAL, LONGEST = 1.0, 2.0
LISTED = 5  # failures that are shown


def _play(top: Top, seeds: list[int], where: Where) -> Iterator[Played]:
    pool: Pool | None = None
    try:
        for seed in seeds:
            pool = pool or Pool(top, where)
            try:
                played = pool.play(seed)
            except AssertionError as error:
                raise AssertionError(f"trial {seed}: {error}") from error
            yield played
            if played.trial.kind in KILLS:
                pool.close()
                pool = None
    finally:
        if pool is not None:
            pool.close()


def _check(seeds: list[int], jobs: int, where: Where) -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as threads:
        top = Top(folder)
        parts = [seeds[job::jobs] for job in range(jobs)]
        running = [
            threads.submit(lambda part: list(_play(top, part, where)), part) for part in parts
        ]
        found = [played for each in running for played in each.result()]
    seconds = [played.seconds for played in found]
    print(
        f"{len(found)} trials: {dict(Counter(played.trial.kind for played in found))}; "
        f"top: median {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s"
    )
    wrong = [
        f"trial {played.trial.seed}: {played.trial}\n{played.trouble}"
        for played in found
        if played.trouble
    ]
    assert not wrong, f"{len(wrong)} of {len(found)} trials:\n" + "\n".join(wrong[:LISTED])
    assert len(found) == len(seeds)
    assert statistics.median(seconds) < USUAL
    late = {played.trial.seed: played.seconds for played in found if played.seconds >= LONGEST}
    assert not late, f"seconds by trial: {late}"


@pytest.mark.slow
@pytest.mark.timeout(2 * ENDS + 5 * max(TRIALS, IN_RELEASES))
@pytest.mark.parametrize("trials", [TRIALS, pytest.param(IN_RELEASES, marks=pytest.mark.release)])
def test_the_rank_that_holds_up_a_job_is_named(trials: int) -> None:
    _check(list(range(SEED, SEED + trials)), JOBS, Where())


# One trial of each of these, with a group whose ranks share no memory between two hosts, or at all.
BETWEEN_HOSTS = (STOPPED, KILLED, LOOPS)
PLACES = "0011"  # the host of each rank
ENGINES = {"auto": "shared memory and Gloo", "gloo": "Gloo"}  # by transport


def _of(kind: str) -> Trial:
    """Return a trial of a kind, in which ranks wait for longer than a second, unless it kills."""
    trials = map(drawn, range(SEED, SEED + 1000))
    return next(each for each in trials if each.kind == kind and (each.pause or kind in KILLS))


def _leaves_records(kind: str, transport: str) -> bool:
    """Tell whether there are records of the rank; peers without shared memory do not hold them."""
    return kind != KILLED or transport != "gloo"


def test_ranks_of_two_hosts(hosts: list[Host]) -> None:
    _check([_of(kind).seed for kind in BETWEEN_HOSTS], 1, Where(hosts, PLACES))


@pytest.mark.parametrize(
    ("kind", "transport"),
    [
        *((STOPPED, "auto"), (KILLED, "auto"), (LOOPS, "gloo")),
        pytest.param(LOOPS, "auto", marks=pytest.mark.release),
        pytest.param(STOPPED, "gloo", marks=pytest.mark.release),
        pytest.param(KILLED, "gloo", marks=pytest.mark.release),
    ],
)
def test_each_of_two_hosts_by_itself(
    hosts: list[Host], tmp_path: Path, kind: str, transport: str
) -> None:
    if (reason := why_no_mounts()) is not None:
        pytest.skip(reason)
    trial = _of(kind)
    print(trial)
    pool = Pool(Top(str(tmp_path)), Where(hosts, PLACES, transport))
    try:
        with pool.held_up(trial):
            for host in set(PLACES):
                here = [rank for rank in range(RANKS) if PLACES[rank] == host]
                left = _leaves_records(kind, transport)
                shown = [rank for rank in here if left or rank != trial.victim]
                hidden = [pid for rank, pid in enumerate(pool.pids) if rank not in here]
                living = next(rank for rank in here if rank != trial.victim)
                if kind == KILLED:
                    hidden = [pid for pid in hidden if pid != pool.pids[trial.victim]]
                words = ["--json", str(pool.pids[living])]
                asked, _ = pool.ask(trial, *words, hidden=hidden)
                _judge_a_host(trial, asked, shown, ENGINES[transport])
    finally:
        pool.close()


def _judge_a_host(trial: Trial, asked: Asked, here: list[int], engine: str) -> None:
    """Check what is said on a host that has some of the ranks."""
    assert asked.errors == "" and asked.output.startswith("{"), asked
    (job,) = json.loads(asked.output)["jobs"]
    group = job["groups"][0]
    assert (group["size"], [row["rank"] for row in group["ranks"]]) == (RANKS, here)
    assert sum(last - first + 1 for first, last in group["missing"]) == RANKS - len(here)
    assert group["engines"] == [engine]
    if trial.victim in here:
        assert verdict_trouble(trial, asked, job["verdict"]) == []
        assert asked.status == (3 if trial.kind in GONE else 0)
        return
    assert asked.status == 0 and job["culprits"] == []
    if trial.kind not in KILLS:
        assert "of which no process is here: on another host, or ended" in job["verdict"]


CASES: dict[str, Callable[[str, Trial], str]] = {
    "another rank": lambda text, trial: text.replace(f'"rank": {trial.victim}', '"rank": 9'),
    "another state": lambda text, trial: text.replace('"state": "outside', '"state": "inside'),
    "another sequence": lambda text, trial: re.sub(r'("sequence": \d+)', r"\g<1>7", text),
    "another operation": lambda text, trial: re.sub(r'"operation": "', '"operation": "x', text),
    "another verdict": lambda text, trial: text.replace("it has been outside", "it was outside"),
    "no wait": lambda text, trial: re.sub(r'"waits_for": \[[^]]+\]', '"waits_for": []', text),
    "no job": lambda text, trial: re.sub(r'"jobs": \[.*\]', '"jobs": []', text, flags=re.S),
}


def test_the_judge_sees_mistakes(tmp_path: Path) -> None:
    trials = map(drawn, range(SEED, SEED + 1000))
    trial = next(each for each in trials if each.kind == SLEEPS and not each.is_text)
    (played,) = _play(Top(str(tmp_path)), [trial.seed], Where())
    assert played.trouble == ""
    for name, change in CASES.items():
        output = change(played.asked.output, trial)
        assert trouble(trial, replace(played.asked, output=output)), name
    assert trouble(trial, replace(played.asked, status=3))
