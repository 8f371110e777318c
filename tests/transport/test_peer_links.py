"""Links between ranks of several hosts (csrc/transport/tcp), without torch."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, WATCHED, Build

ALONE = ["who_is_linked", "death"]  # of processes, which ThreadSanitizer does not follow
THREADS = ["a_notice", "leaving", "who_is_late", "strangers", "missing", "given_up", "bytes"]


@pytest.mark.parametrize(("build", "seed"), [(PLAIN, "1"), (BOUNDS, "2")], ids=["plain", "bounds"])
@pytest.mark.parametrize("case", [*ALONE, *THREADS])
def test_links(case: str, build: Build, seed: str) -> None:
    programs.check(programs.get("peer_links_test", build), case, seed)


@pytest.mark.parametrize("case", THREADS)
def test_threads_of_links(case: str) -> None:
    output = programs.check(programs.get("peer_links_test", WATCHED), case, "3")
    assert not programs.races(output)


@pytest.mark.parametrize(
    ("control", "case", "told"),
    [
        ("keep_links", "death", "noticed when a forked child ended"),
        ("not_ready", "given_up", "a living rank was called dead"),
    ],
)
def test_negative_controls_are_reported(control: str, case: str, told: str) -> None:
    program = programs.get("peer_links_test", BOUNDS)
    programs.check_failure(program, case, "1", says=told, control=control)
