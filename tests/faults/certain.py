"""What has ended on every rank before the fault can have any effect, whatever the timing. Pure.

What a rank has completed, its peers have taken part in; so they have done all that comes before it
in their own programs; and so on. What is not found here may be over, too; nobody can know.
"""

from __future__ import annotations

from faults.schedule import Op, Schedule


def ended_before(schedule: Schedule) -> dict[int, set[int]]:
    """Return operations that end well on each rank, before the victim comes to its fault."""
    fault, steps = schedule.fault, schedule.steps
    done = dict.fromkeys(range(schedule.size), 0)  # as many steps are over, and what they wait for
    starts = [(fault.victim, fault.at)]
    if fault.kind == "misfit":  # nobody can tell before both sides are there
        op = schedule.ops[fault.at]
        starts += [(rank, fault.at) for rank in (op.source, op.root) if rank >= 0]
    for rank, at in starts:
        done[rank] = sum(step.op < at for step in steps[rank])
    while True:
        ended = {rank: _ended(schedule, rank, done[rank]) for rank in done}
        before = dict(done)
        for rank, ops in ended.items():
            for at in ops:
                for peer in needed(schedule.ops[at], rank, schedule.players(at)):
                    # The peer has issued this one, so what it did before is over.
                    done[peer] = max(done[peer], [step.op for step in steps[peer]].index(at))
        if done == before:
            return ended


def _ended(schedule: Schedule, rank: int, count: int) -> set[int]:
    """Return what a rank has ended after ``count`` steps; collectives end in their order."""
    ended, issued = set(), []
    for step in schedule.steps[rank][:count]:
        issued.append(step.op)
        for op in (*([] if step.asynchronous else [step.op]), *step.then_wait):
            ended.add(op)
            if not schedule.ops[op].is_message:
                ended |= {one for one in issued if one <= op and _alike(schedule, one, op)}
    return ended


def _alike(schedule: Schedule, one: int, other: int) -> bool:
    """Tell whether both are collectives of one group."""
    a, b = schedule.ops[one], schedule.ops[other]
    return a.group == b.group and not a.is_message


def needed(op: Op, rank: int, players: tuple[int, ...]) -> tuple[int, ...]:
    """Return who must have issued an operation that a rank has ended."""
    if not op.is_message:
        return players
    if op.kind == "batch":
        place = players.index(rank)
        after, before = players[(place + 1) % len(players)], players[place - 1]
        return (before, after) if op.is_long else (before,)
    if rank == op.root:
        return tuple(player for player in players if player != rank)
    return (op.root,) if op.is_long else ()
