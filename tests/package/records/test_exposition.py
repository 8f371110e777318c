"""The text for Prometheus."""

from __future__ import annotations

import re

from package.records.test_jobs import NOW, done, group, inside, rank

from fastcomm._records.exposition import Exposition, escaped
from fastcomm._records.find import Found

SAMPLE = re.compile(r'(\w+)\{job="(\w*)",rank="(\d*)",pid="(\d+)"(?:,state="(\w+)")?\} (\d\S*)')


def samples(text: str) -> dict[tuple[str, str, str], float]:
    """Values by name, rank and state, of text that has nothing else in it but HELP and TYPE."""
    found: dict[tuple[str, str, str], float] = {}
    for line in text.splitlines():
        if not re.match(r"# (HELP|TYPE) fastcomm_\w+ \S", line):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            key = (match[1], match[3], match[5] or "")
            assert key not in found
            found[key] = float(match[6])
    return found


def test_each_rank_has_its_numbers() -> None:
    ranks = (
        rank([done(), inside(1, 12)], [group(0, 2)], pid=1),
        rank([done()], [group(1, 2)], "T", pid=2),
    )
    text = Exposition().of(Found(ranks, (), NOW))
    assert text.endswith("\n")
    found = samples(text)
    assert found["fastcomm_calls_total", "0", ""] == 2
    assert found["fastcomm_bytes_total", "0", ""] == 2 * 4096
    assert found["fastcomm_records_dropped_total", "1", ""] == 0
    assert found["fastcomm_rank_open_call_seconds", "0", ""] == 12
    assert found["fastcomm_wait_seconds", "0", ""] == 12
    assert found["fastcomm_wait_seconds", "1", ""] == 0
    states = {(key[1], key[2]): value for key, value in found.items() if key[2]}
    assert {key for key, value in states.items() if value} == {("0", "in_call"), ("1", "stopped")}
    assert len(states) == 8


def test_counters_do_not_go_back_when_records_are_overwritten() -> None:
    exposition = Exposition()

    def counted(number: int, kept: int) -> float:
        seen = rank([done(n) for n in range(number)], [group(0, 1)])
        snapshot = seen.snapshot
        object.__setattr__(snapshot, "calls", snapshot.calls[-kept:])
        return samples(exposition.of(Found((seen,), (), NOW)))["fastcomm_bytes_total", "0", ""]

    assert counted(4, 4) == 4 * 4096
    assert counted(4, 2) == 4 * 4096
    assert counted(6, 3) == 6 * 4096
    assert counted(9, 1) == 7 * 4096  # two of three were not seen


def test_who_cannot_be_told_from_others_is_left_out() -> None:
    found = Found((rank([], [], None), rank([], [], "S", pid=2)), (), NOW)
    assert {key[0] for key in samples(Exposition().of(found))} >= {"fastcomm_calls_total"}
    assert 'pid="1"' not in Exposition().of(found)


def test_values_of_labels_are_escaped() -> None:
    assert escaped('a\\b"c\nd') == 'a\\\\b\\"c\\nd'
