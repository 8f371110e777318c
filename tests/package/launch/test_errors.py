"""The message of a `LaunchError`."""

from __future__ import annotations

import signal

from fastcomm._launch.errors import Failure, ending, launch_error


def test_consequences_stand_behind_their_cause() -> None:
    failures = [
        Failure(0, "PeerLostError: rank 3 died", 5, consequence=True),
        Failure(2, "ValueError", 9),
        Failure(3, "was killed", 7),
    ]
    error = launch_error(failures, [4, 1], 5)
    assert list(error.failures) == [3, 2, 0] and error.ended == (1, 4)
    assert str(error).split("\n\n") == [
        "3 of 5 ranks failed, rank 3 first",
        "rank 3: was killed",
        "rank 2: ValueError",
        "rank 0: PeerLostError: rank 3 died",
        "ended because of that: rank 1, 4",
    ]
    assert "ended" not in str(launch_error(failures, [], 3))


def test_signals_have_names() -> None:
    assert ending(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert ending(-signal.SIGKILL).startswith("was killed by SIGKILL, as the kernel does")
    assert ending(-(signal.SIGRTMIN + 3)).startswith("was killed by signal 3")
    assert ending(3) == "ended with status 3"
