"""Ranks of a job whose records are made, not written by processes."""

from __future__ import annotations

from collections.abc import Sequence

from support.record_files import MadeCall, MadeGroup, made

from fastcomm._records import layout
from fastcomm._records.ranks import Rank

BASE = 1_000_000_000_000  # ns; before all times
MS = 1_000_000
NOW = BASE + 10_000 * MS


def made_rank(
    number: int, size: int, calls: Sequence[MadeCall], groups: Sequence[MadeGroup] = ()
) -> Rank:
    """Return a rank with these calls, in the default group unless others are given."""
    data = made(calls, groups or [MadeGroup(number, size)], pid=4711 + number, base=BASE)
    return Rank(number, 4711 + number, "sleeping", NOW, layout.parse(data), data)


def made_job(
    size: int, collectives: int, *, late: int = 2, every: int = 5, by: int = 3 * MS
) -> list[Rank]:
    """Return ranks that have called all_reduce, one each 20 ms.

    Rank ``late`` is last, by ``by`` ns, but in one of ``every`` collectives: there the ranks take
    turns in being last, by 0.01 ms. Data move for 1 ms, and each rank ends 0.01 ms after the one
    before.
    """
    ranks = []
    for rank in range(size):
        calls = []
        for sequence in range(collectives):
            begin = BASE + (1 + sequence) * 20 * MS
            is_late = sequence % every != 0
            turn = sequence // every % size
            after = (rank - turn - 1) % size * MS // 100
            last = (
                begin + (size - 2) * MS // 100 + by if is_late else begin + (size - 1) * MS // 100
            )
            if is_late:
                order = rank - (rank > late)
                issued = last if rank == late else begin + order * MS // 100
            else:
                issued = begin + after
            ended = last + MS + rank * MS // 100
            calls.append(
                MadeCall(issued=issued, started=last, ended=ended, sequence=sequence, is_async=True)
            )
        ranks.append(made_rank(rank, size, calls))
    return ranks


def left_alone(size: int, skipped: int, by: int) -> list[Rank]:
    """Return ranks of which ``by`` has not come to collective number ``skipped``.

    The others wait in it.
    """
    ranks = []
    for rank in made_job(size, skipped + 1, late=by):
        calls = [
            MadeCall(
                issued=call.issued,
                started=0 if call.sequence == skipped else call.started or 0,
                ended=0 if call.sequence == skipped else call.ended or 0,
                sequence=call.sequence or 0,
            )
            for call in rank.snapshot.calls
            if not (rank.number == by and call.sequence == skipped)
        ]
        ranks.append(made_rank(rank.number, size, calls))
    return ranks
