"""A trial of who holds up a job: what four ranks call, and which of them comes no further, and how.

A trial is its number's, and nothing else's: each rank draws it again by itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

RANKS = 4
# Every rank is in two groups besides the one of all.
GROUPS = [(0, 1, 2, 3), (1, 2, 3), (0, 2), (0, 1, 3)]

# How a rank comes no further: outside any call, or in one.
STOPPED, STOPPED_INSIDE = "stopped", "stopped in a call"
KILLED, KILLED_INSIDE = "killed", "killed in a call"
LOOPS, SLEEPS = "an endless loop", "sleeps"
RECEIVES, RECEIVES_ANY = "receives", "receives from any rank"
ELSEWHERE = "a collective that nobody joins"
KINDS = (
    *(STOPPED, LOOPS, KILLED, ELSEWHERE, SLEEPS, RECEIVES),
    *(STOPPED_INSIDE, RECEIVES_ANY, KILLED_INSIDE),
)
INSIDE = (STOPPED_INSIDE, KILLED_INSIDE)
OUTSIDE = (STOPPED, KILLED, LOOPS, SLEEPS)
KILLS = (KILLED, KILLED_INSIDE)
GONE = (STOPPED, STOPPED_INSIDE, *KILLS)

MESSAGE = "send and recv"
# In these every rank waits for every other one.
MEETINGS = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"),
    *("all_to_all_single", "barrier"),
)
COLLECTIVES = (*MEETINGS, "broadcast")
COUNTS = (1, 7, 1000, 100_000)  # elements for each rank of a group
# So many that a rank that has given all it could at once is still needed.
MANY = 1_000_000


@dataclass(frozen=True)
class Call:
    """A call of all ranks of a group, or a message between two of them.

    Attributes:
        group: its place in `GROUPS`.
        root: a rank in the group; of a message: who sends.
        peer: the rank in the group that receives.
    """

    operation: str
    group: int
    count: int
    root: int
    peer: int = -1
    is_async: bool = False


@dataclass(frozen=True)
class Trial:
    """What the ranks do.

    Attributes:
        victim: the rank that comes no further; all ranks here are those of the default group.
        healthy: calls that go well before.
        final: what the others call then, with the victim or without it.
        ahead: how many more collectives they issue meanwhile.
        last: what ranks call that are not in the group of `final`, and the others after it.
        own: what the victim calls instead, if anything.
        asynchronous: the ranks that issue `final` and `last` without waiting.
        asked: the rank whose PID `top` is given; None: it is given none.
        is_text: whether it prints text, not JSON.
        pause: seconds between the last call and the question.
    """

    seed: int
    kind: str
    victim: int
    healthy: tuple[Call, ...]
    final: Call
    ahead: int
    last: Call | None
    own: Call | None
    asynchronous: frozenset[int]
    asked: int | None
    is_text: bool
    pause: float

    @property
    def members(self) -> tuple[int, ...]:
        return GROUPS[self.final.group]

    @property
    def partners(self) -> tuple[int, ...]:
        """Ranks that join the victim's own call at the end."""
        if self.own is None:
            return ()
        if self.kind == ELSEWHERE:
            return tuple(rank for rank in GROUPS[self.own.group] if rank != self.victim)
        return (GROUPS[self.own.group][self.own.root],)

    def issued_by(self, rank: int) -> list[Call]:
        """Return what a rank other than the victim has issued when the question comes."""
        calls = [self.final, *[ahead(self.final)] * self.ahead] * (rank in self.members)
        calls += [self.last] if self.last is not None else []
        return calls if rank in self.asynchronous else calls[:1]

    def counted(self) -> list[Call]:
        """Return all collectives, in the order of each group."""
        calls = [*self.healthy, self.final, *[ahead(self.final)] * self.ahead]
        calls += [call for call in (self.last, self.own) if call is not None]
        return [call for call in calls if call.operation != MESSAGE]


def ahead(final: Call) -> Call:
    return Call("all_reduce", final.group, 5, 0)


def numbers(trial: Trial, begin: list[int]) -> tuple[list[int], list[int]]:
    """Return, by group, how many collectives come before what hangs, and how many in all.

    Args:
        begin: by group, how many there have been.
    """
    groups = range(len(GROUPS))

    def sums(calls: list[Call]) -> list[int]:
        return [begin[at] + sum(call.group == at for call in calls) for at in groups]

    healthy = [call for call in trial.healthy if call.operation != MESSAGE]
    return sums(healthy), sums(trial.counted())


def _collective(choice: random.Random, group: int) -> Call:
    size = len(GROUPS[group])
    operation, count = choice.choice(COLLECTIVES), choice.choice(COUNTS)
    return Call(operation, group, count, choice.randrange(size), -1, choice.random() < 0.3)


def _message(choice: random.Random, group: int) -> Call:
    source, target = choice.sample(range(len(GROUPS[group])), 2)
    return Call(MESSAGE, group, choice.choice(COUNTS[:3]), source, target)


def _healthy(choice: random.Random) -> Call:
    group = choice.choice([0, 0, 1, 2, 3])
    return _message(choice, group) if choice.random() < 0.2 else _collective(choice, group)


def _meeting(choice: random.Random, group: int, victim: int, kind: str = "") -> Call:
    """Draw a collective in which all ranks of a group wait for one of them."""
    root = GROUPS[group].index(victim)
    if kind in INSIDE:  # a broadcast's root may leave it before the others come
        operation = choice.choice([each for each in MEETINGS if each != "barrier"])
        return Call(operation, group, MANY, root)
    return Call(choice.choice(COLLECTIVES), group, choice.choice(COUNTS), root)


def _own(choice: random.Random, kind: str, victim: int, final: Call) -> Call | None:
    """Draw what the victim calls instead of `final`."""
    groups = [at for at, members in enumerate(GROUPS) if victim in members]
    if kind == ELSEWHERE:
        group = choice.choice([at for at in groups if at not in (0, final.group)])
        root = choice.choice([rank for rank in GROUPS[group] if rank != victim])
        return _meeting(choice, group, root)
    if kind in (RECEIVES, RECEIVES_ANY):
        group = choice.choice(groups) if kind == RECEIVES else 0
        peer = GROUPS[group].index(victim)
        source = choice.choice([rank for rank in range(len(GROUPS[group])) if rank != peer])
        return Call(MESSAGE, group, choice.choice(COUNTS[:3]), source, peer)
    return None


def drawn(seed: int) -> Trial:
    """Draw a trial. One kind comes after the other."""
    choice = random.Random(f"held up {seed}")
    kind, victim = KINDS[seed % len(KINDS)], choice.randrange(RANKS)
    healthy = tuple(_healthy(choice) for _ in range(choice.randrange(8)))
    group = choice.choice([0, 0, *(at for at in (1, 2, 3) if victim in GROUPS[at])])
    final = _meeting(choice, group, victim, kind)
    more = choice.choice([0, 0, 1, 2])
    # Less than a second is no news, but of the gone.
    is_quick = kind in GONE and choice.random() < 0.5
    trial = Trial(
        *(seed, kind, victim, healthy, final, more),
        last=_meeting(choice, 0, victim) if group else None,
        own=_own(choice, kind, victim, final),
        asynchronous=frozenset(
            rank for rank in range(RANKS) if more or is_quick or choice.random() < 0.3
        ),
        asked=choice.choice([None, *range(RANKS)]),
        is_text=choice.random() < 0.25,
        pause=0.0 if is_quick else choice.uniform(1.1, 1.3),
    )
    return replace(trial, asynchronous=trial.asynchronous.union(trial.partners))
