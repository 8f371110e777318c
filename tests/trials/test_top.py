"""``fastcomm top`` names the rank that holds up a job, in random trials.

FC_TOP_SEED and FC_TOP_TRIALS choose others, or more: a trial is its number's, so that
``FC_TOP_SEED=17 FC_TOP_TRIALS=1`` plays trial 17 again.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.namespaces import Host
from support.patience import ENDS
from trials.held_up import KILLS, KINDS
from trials.held_up_judge import trouble
from trials.held_up_pool import Played, Pool, Top

pytestmark = pytest.mark.serial  # the time of each answer is looked at

SEED = int(os.environ.get("FC_TOP_SEED", "0"))
TRIALS = int(os.environ.get("FC_TOP_TRIALS", "30"))
IN_RELEASES = 1000
JOBS = 2  # at the same time
# Seconds from the start of the interpreter: as is usual, and on a crowded machine.
USUAL, LONGEST = 1.0, 2.0
LISTED = 5  # failures that are shown


def _play(top: Top, seeds: list[int], hosts: list[Host] | None, places: str) -> Iterator[Played]:
    pool: Pool | None = None
    try:
        for seed in seeds:
            pool = pool or Pool(top, hosts, places)
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


def _check(seeds: list[int], jobs: int, hosts: list[Host] | None = None, places: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as threads:
        top = Top(folder)
        parts = [seeds[job::jobs] for job in range(jobs)]
        running = [
            threads.submit(lambda part: list(_play(top, part, hosts, places)), part)
            for part in parts
        ]
        found = [played for each in running for played in each.result()]
    seconds = [played.seconds for played in found]
    print(
        f"{len(found)} trials: {dict(Counter(played.trial.kind for played in found))}; "
        f"top: median {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s"
    )
    wrong = [
        f"trial {played.trial.seed}: {played.trial}\n{played.trouble}\n{played.asked.output}"
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
    _check(list(range(SEED, SEED + trials)), JOBS)
