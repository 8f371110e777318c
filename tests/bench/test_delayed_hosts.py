"""Long cables between namespaces, as benchmarks and tests use them (support/namespaces.py)."""

from __future__ import annotations

import socket
import statistics
import time

import pytest
from support.namespaces import Host, delayed_hosts, why_no_delay
from support.patience import ENDS
from support.ranks import World, run_ranks

pytestmark = pytest.mark.serial  # network namespaces

_DELAY_US = 20_000  # longer than a process waits for a processor
_PORT = 29800


def _ping_pong(world: World, hosts: list[Host], length: int) -> list[float]:
    """Send bytes there and back, and return the seconds that each turn took."""
    hosts[world.rank].enter()
    if world.rank == 0:
        with socket.create_server((hosts[0].address, _PORT)) as server:
            world.tell("listening")
            end, _ = server.accept()
    else:
        world.hear("listening")
        end = socket.create_connection((hosts[0].address, _PORT), timeout=ENDS)
    times = []
    with end, end.makefile("rwb") as stream:
        for _ in range(7):
            begun = time.perf_counter()
            if world.rank == 0:
                stream.write(bytes(length))
                stream.flush()
            got = stream.read(length)
            assert len(got) == length
            if world.rank == 1:
                stream.write(got)
                stream.flush()
            times.append(time.perf_counter() - begun)
    return times


@pytest.mark.parametrize("length", [1, 300_000])
def test_a_turn_takes_twice_the_delay(length: int) -> None:
    if (reason := why_no_delay()) is not None:
        pytest.skip(reason)
    with delayed_hosts(2, _DELAY_US) as hosts:
        times = run_ranks(2, _ping_pong, hosts, length)[0]
    turn = 2 * _DELAY_US / 1e6
    assert min(times) >= turn
    if length == 1:  # more needs several turns, until TCP's window is open
        assert statistics.median(times) < 1.5 * turn, times
