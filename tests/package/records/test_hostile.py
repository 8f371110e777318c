"""Records with random bytes in them: what is made of them is wrong, but nothing fails."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace

from support.made_ranks import made_job

from fastcomm._records import flight, layout
from fastcomm._records.ranks import Rank
from fastcomm._records.summary import summarize
from fastcomm._records.summary_text import findings
from fastcomm._records.timeline import timeline

CALLS = 20
PLACES = (  # of what is in use
    *range(400),
    *range(layout.GROUPS_AT, layout.GROUPS_AT + 100),
    *range(layout.CALLS_AT, layout.CALLS_AT + CALLS * layout.CALL_BYTES),
)


def _spoilt(rank: Rank, generator: random.Random) -> Rank:
    data = bytearray(rank.data)
    for at in generator.choices(PLACES, k=generator.randrange(40)):
        data[at] = generator.randrange(256)
    try:
        return replace(rank, snapshot=layout.parse(bytes(data)))
    except layout.RecordsError:
        return rank


def test_records_that_are_wrong_break_nothing() -> None:
    generator = random.Random(5)
    job = made_job(3, CALLS)
    spoilt = 0
    for _ in range(40):
        ranks = [_spoilt(rank, generator) for rank in job]
        spoilt += sum(one is not other for one, other in zip(ranks, job, strict=True))
        findings(summarize(ranks))
        json.dumps(timeline(ranks))
        pickle.dumps(flight.dumps(ranks))
    assert spoilt > 40
