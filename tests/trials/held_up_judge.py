"""What `top` must say of a trial of `trials.held_up`, and whether it does."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from trials.held_up import (
    ELSEWHERE,
    GONE,
    GROUPS,
    INSIDE,
    KILLS,
    LOOPS,
    MESSAGE,
    OUTSIDE,
    RECEIVES,
    RECEIVES_ANY,
    SLEEPS,
    Call,
    Trial,
)

OUTSIDE_ANY = "outside any call"
# What begins the state in a row of text, if the rank is none of these.
_WORDS = {"dead": "gone, ", "stopped": "stopped "}


@dataclass(frozen=True)
class Asked:
    """What `top` said, and what there was to say.

    Attributes:
        pids: of the ranks.
        names: of the groups.
        begin: by group, how many collectives came before what hangs.
    """

    pids: tuple[int, ...]
    names: tuple[str, ...]
    begin: tuple[int, ...]
    status: int
    output: str
    errors: str


def trouble(trial: Trial, asked: Asked) -> str:
    """Return what is wrong with an answer, if anything is."""
    found = _text_trouble(trial, asked) if trial.is_text else _json_trouble(trial, asked)
    return "; ".join(found)


def _text_trouble(trial: Trial, asked: Asked) -> list[str]:
    blocks = [block.splitlines() for block in re.split(r"^(?=job )", asked.output, flags=re.M)]
    living = [pid for rank, pid in enumerate(asked.pids) if rank != trial.victim]
    ours = [b for b in blocks if any(re.match(rf" +\d+ +{living[0]} ", line) for line in b)]
    if len(ours) != 1:
        return [f"{len(ours)} jobs have the ranks"]
    found = _status_trouble(trial, asked, " is stopped" in asked.output or " gone" in asked.output)
    found += verdict_trouble(trial, asked, ours[0][1])
    for rank, pid in enumerate(asked.pids):
        shown = f"({pid})" if rank == trial.victim and trial.kind in KILLS else str(pid)
        rows = [line for line in ours[0] if re.match(rf" +\d+ +{re.escape(shown)}  ", line)]
        groups = [at for at, members in enumerate(GROUPS) if rank in members]
        pattern = "|".join(_row_pattern(trial, asked, rank, at) for at in groups)
        if len(rows) != len(groups) or not all(re.search(pattern, row) for row in rows):
            found.append(f"rows of rank {rank} are {rows}, not with {pattern!r}")
    return found


def _row_pattern(trial: Trial, asked: Asked, rank: int, at: int) -> str:
    call = _open_call(trial, rank, at)
    inside = _call_pattern(call, asked, trial) if call else OUTSIDE_ANY
    before = _WORDS.get(_state(trial, rank, at), "")
    if call is None and not before:
        inside += {LOOPS: ", computes", SLEEPS: ", sleeps"}.get(trial.kind, "")
    return f"  {before}{'in ' if call else ''}{inside}"


def _json_trouble(trial: Trial, asked: Asked) -> list[str]:
    report = json.loads(asked.output)
    living = {pid for rank, pid in enumerate(asked.pids) if rank != trial.victim}
    jobs = [j for j in report["jobs"] if living & {each["pid"] for each in j["processes"]}]
    if len(jobs) != 1:
        return [f"{len(jobs)} jobs have the ranks"]
    (job,) = jobs
    found = _status_trouble(trial, asked, any(each["held_up"] for each in report["jobs"]))
    found += verdict_trouble(trial, asked, job["verdict"])
    if job["held_up"] != (trial.kind in GONE):
        found.append(f"held_up is {job['held_up']}")
    groups = {each["name"]: each for each in job["groups"]}
    if len(job["groups"]) != len(GROUPS) or set(groups) != set(asked.names):
        return [*found, f"groups are {[each['name'] for each in job['groups']]}"]
    blamed = {(groups[name]["token"], members.index(trial.victim))
              for name, members in zip(asked.names, GROUPS, strict=True)
              if trial.victim in members}  # fmt: skip
    culprits = {(each["token"], each["rank"]) for each in job["culprits"]}
    if not culprits <= blamed or bool(culprits) != _is_blamed(trial):
        found.append(f"culprits are {culprits}")
    for at, name in enumerate(asked.names):
        found += _group_trouble(trial, asked, at, groups[name])
    return found


def _status_trouble(trial: Trial, asked: Asked, is_any_held_up: bool) -> list[str]:
    held_up = trial.kind in GONE if trial.asked is not None else is_any_held_up
    wanted = 3 if held_up else 0
    # Without a PID there may be jobs of others, held up or not.
    return [f"the status is {asked.status}, not {wanted}"] if asked.status != wanted else []


def _group_trouble(trial: Trial, asked: Asked, at: int, group: Any) -> list[str]:
    found = []
    if [row["rank"] for row in group["ranks"]] != [*range(len(GROUPS[at]))]:
        return [f"group {at} has the ranks {[row['rank'] for row in group['ranks']]}"]
    for rank, row in zip(GROUPS[at], group["ranks"], strict=True):
        seen = {
            **{key: row[key] for key in ("pid", "own_pid", "state", "waits_for", "open_calls")},
            "call": _told(row["call"]),
        }
        is_dead = rank == trial.victim and trial.kind in KILLS
        call = _open_call(trial, rank, at)
        wanted = {
            "pid": None if is_dead else asked.pids[rank],
            "own_pid": asked.pids[rank],
            "state": _state(trial, rank, at),
            "waits_for": _waits_for(trial, rank, at),
            "open_calls": _open_calls(trial, rank),
            "call": _wanted(call, asked, trial, rank) if call else None,
        }
        if rank == trial.victim:
            seen["last_call"] = _told(row["last_call"])
            wanted["last_call"] = _last_call(trial, asked, at) or seen["last_call"]
            seen["computes"] = row["computes"]
            wanted["computes"] = {LOOPS: True, SLEEPS: False}.get(trial.kind, row["computes"])
        found += [
            f"rank {rank} in group {at}: {key} is {seen[key]}, not {wanted[key]}"
            for key in seen
            if seen[key] != wanted[key]
        ]
    return found


def _told(call: Any) -> tuple[Any, ...] | None:
    """Return what of a call is known beforehand; a message's number is not."""
    if call is None:
        return None
    is_message = call["operation"] in ("send", "recv")
    return call["operation"], None if is_message else call["sequence"], call["peer"]


def _wanted(call: Call, asked: Asked, trial: Trial, rank: int) -> tuple[Any, ...]:
    if call.operation != MESSAGE:
        return call.operation, asked.begin[call.group], None
    if rank == GROUPS[call.group][call.root]:
        return "send", None, call.peer
    return "recv", None, None if trial.kind == RECEIVES_ANY and call is trial.own else call.root


def _open_call(trial: Trial, rank: int, at: int = 0) -> Call | None:
    """Return the oldest call that a rank is in: of a group, else of any."""
    if rank == trial.victim:
        return trial.final if trial.kind in INSIDE else trial.own
    if trial.kind in KILLS:
        return None
    calls = trial.issued_by(rank)
    return next((call for call in calls if call.group == at), calls[0])


def _open_calls(trial: Trial, rank: int) -> int:
    if rank == trial.victim or trial.kind in KILLS:
        return int(_open_call(trial, rank) is not None)
    return len(trial.issued_by(rank))


def _state(trial: Trial, rank: int, at: int) -> str:
    if rank == trial.victim and trial.kind in GONE:
        return "dead" if trial.kind in KILLS else "stopped"
    call = _open_call(trial, rank, at)
    if call is None:
        return OUTSIDE_ANY
    return "in call" if call.group == at else "in another group's call"


def _waits_for(trial: Trial, rank: int, at: int) -> list[int]:
    """Return the ranks of a group that a rank waits for in it."""
    members = GROUPS[at]
    if rank == trial.victim:
        if trial.own is None or trial.own.group != at or trial.kind == RECEIVES_ANY:
            return []
        return sorted(members.index(each) for each in trial.partners)
    if trial.kind in KILLS:
        return []
    if not any(call.group == at for call in trial.issued_by(rank)):
        return []
    come = {
        each
        for each in members
        if each != trial.victim and any(call.group == at for call in trial.issued_by(each))
    }
    return [number for number, each in enumerate(members) if each not in come]


def _last_call(trial: Trial, asked: Asked, at: int) -> tuple[Any, ...] | None:
    """Return the victim's newest call in a group; None if it is of an earlier trial."""
    call = _open_call(trial, trial.victim)
    if call is not None and call.group == at:
        return _wanted(call, asked, trial, trial.victim)
    own = GROUPS[at].index(trial.victim)
    calls = [
        call
        for call in trial.healthy
        if call.group == at and (call.operation != MESSAGE or own in (call.root, call.peer))
    ]
    if not calls:
        return None
    operation, number, peer = _wanted(calls[-1], asked, trial, trial.victim)
    return operation, None if number is None else number - 1, peer


def _is_blamed(trial: Trial) -> bool:
    """Tell whether ranks wait for the victim, and it for nobody."""
    return trial.kind not in (*KILLS, RECEIVES, ELSEWHERE)


def _call_pattern(call: Call, asked: Asked, trial: Trial) -> str:
    """Return what a call looks like in text, as a pattern."""
    operation, number, _ = _wanted(call, asked, trial, trial.victim)
    if call.operation != MESSAGE:
        return rf"{operation}\([^()]*\), sequence {number}(?!\d)"
    source = "any rank" if trial.kind == RECEIVES_ANY else f"rank {call.root}"
    return rf"recv\(float32, {call.count} elements?, from {source}\)"


def verdict_trouble(trial: Trial, asked: Asked, text: str) -> list[str]:
    """Return what is wrong with a verdict, if anything is."""
    pattern = "|".join(_verdict_patterns(trial, asked))
    return [] if re.fullmatch(pattern, text) else [f"the verdict is {text!r}, not {pattern!r}"]


def _verdict_patterns(trial: Trial, asked: Asked) -> list[str]:
    """Return what the verdict may be, by groups in which ranks wait for the victim."""
    call = _open_call(trial, trial.victim)
    inside = f"in {_call_pattern(call, asked, trial)}" if call else OUTSIDE_ANY
    if trial.kind in KILLS:
        last = _last_text(trial, asked, 0)
        return [f"rank {trial.victim} of group '{asked.names[0]}' is gone, {inside}: no process "
                f"here has it{last}; no rank waits for it yet"]  # fmt: skip
    if not _is_blamed(trial):
        assert trial.own is not None
        at = trial.own.group
        who = f"rank {GROUPS[at].index(trial.victim)} of group '{asked.names[at]}'"
        return [rf"ranks wait for each other: (.*; )?{who} for rank \d {inside}(;.*)?"]
    found = []
    for at in {trial.final.group, 0 if trial.last else trial.final.group}:
        does = f"is stopped, {inside}" if trial.kind in GONE else rf"has been {inside}"
        if call is not None and trial.kind not in GONE and call.group != at:
            does += f", of group '{asked.names[call.group]}'"
        does += "" if trial.kind in GONE else r" for \d+\.\d s"
        who = f"rank {GROUPS[at].index(trial.victim)} of group '{asked.names[at]}'"
        last = _last_text(trial, asked, at)
        found.append(rf"{who} holds up ranks? [\d, -]+: it {does}{last}( \(and 1 more such\))?")
    return found


def _last_text(trial: Trial, asked: Asked, at: int) -> str:
    """Return how a verdict goes on about a rank outside any call, as a pattern."""
    if trial.kind not in OUTSIDE:
        return ""
    last = _last_call(trial, asked, at)
    if last is None:
        return r"; (its last was \w+\(.*\).*?|it has called nothing yet)"
    if last[1] is None:
        return rf"; its last was {last[0]}\(.*\)"
    return rf"; its last was {last[0]}\([^()]*\), sequence {last[1]}"
