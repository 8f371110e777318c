"""Division of cores among ranks, on machines that are made up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcomm._machine.division import Cpu, Share, divide, physical_cores, threads_each


def machine(*nodes: int, smt: int = 1, first: int = 0) -> list[Cpu]:
    """Return a machine with so many physical cores on each node.

    Hyper-threads are numbered as Linux does on x86: first one thread of each core, then the others.
    """
    cores = sum(nodes)
    node_of = [node for node, count in enumerate(nodes) for _ in range(count)]
    return [
        Cpu(first + thread * cores + core, first + core, node_of[core])
        for thread in range(smt)
        for core in range(cores)
    ]


@st.composite
def machines(draw: st.DrawFn) -> list[Cpu]:
    """Return any machine, of which a mask may leave any hardware threads but one out."""
    nodes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    cpus = machine(*nodes, smt=draw(st.integers(1, 4)), first=draw(st.integers(0, 3)))
    kept = draw(st.lists(st.sampled_from(cpus), min_size=1, unique=True))
    return draw(st.sampled_from([cpus, kept]))


QUOTAS = st.none() | st.floats(0.1, 64)


@settings(deadline=None)
@given(machines(), st.integers(1, 40), QUOTAS)
def test_any_machine(cpus: list[Cpu], ranks: int, quota: float | None) -> None:
    shares = divide(cpus, ranks, quota)
    assert len(shares) == ranks and shares == divide(reversed(cpus), ranks, quota)
    of = {cpu.number: cpu for cpu in cpus}
    cores = physical_cores(cpus)
    together: dict[int, set[int]] = {}
    for cpu in cpus:
        together.setdefault(cpu.core, set()).add(cpu.number)
    for share in shares:
        assert share.cpus and share.cpus == tuple(sorted(set(share.cpus)))
        for number in share.cpus:  # KeyError: not of the mask
            assert together[of[number].core] <= set(share.cpus), "hyper-threads are apart"
    used = Counter(number for share in shares for number in share.cpus)
    if ranks <= cores:
        assert max(used.values()) == 1, "a core is shared"
    else:
        crowd = Counter(of[share.cpus[0]].core for share in shares)
        assert len(crowd) == cores and max(crowd.values()) - min(crowd.values()) <= 1
    nodes = {cpu.node for cpu in cpus}
    if ranks >= len(nodes):
        assert all(len({of[number].node for number in share.cpus}) == 1 for share in shares)
    else:
        holders = Counter(node for s in shares for node in {of[n].node for n in s.cpus})
        assert set(holders) == nodes and max(holders.values()) == 1, "a node is shared, or idle"
    (threads,) = {share.threads for share in shares}
    limit = cores if quota is None else min(cores, quota)
    assert threads >= 1 and (threads == 1 or threads * ranks <= limit)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12))
def test_equal_nodes_are_shared_equally(cores: int, ranks_a_node: int) -> None:
    shares = divide(machine(cores, cores, smt=2), 2 * ranks_a_node)
    assert shares[0].threads == max(1, cores // ranks_a_node)


def numbers(shares: list[Share]) -> list[list[int]]:
    return [list(share.cpus) for share in shares]


def test_hyper_threads_stay_together() -> None:
    assert numbers(divide(machine(4, smt=2), 2)) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert divide(machine(4, smt=2), 2)[0].threads == 2


def test_a_rank_lies_on_one_node() -> None:
    shares = divide(machine(4, 4), 3)
    assert numbers(shares) == [[0, 1], [2, 3], [4, 5, 6, 7]]
    assert [share.threads for share in shares] == [2, 2, 2]
    assert numbers(divide(machine(6, 2), 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_fewer_ranks_than_nodes_have_whole_ones() -> None:
    assert numbers(divide(machine(2, 2, 2, 2), 2)) == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_odd_counts_and_crowds() -> None:
    assert numbers(divide(machine(5), 2)) == [[0, 1], [2, 3, 4]]
    assert divide(machine(5), 2)[1].threads == 2
    assert numbers(divide(machine(2, smt=2), 5)) == [[0, 2], [0, 2], [0, 2], [1, 3], [1, 3]]


def test_a_quota_limits_threads_and_not_cores() -> None:
    assert [share.threads for share in divide(machine(16), 2, 6.5)] == [3, 3]
    assert [len(share.cpus) for share in divide(machine(16), 2, 6.5)] == [8, 8]
    assert threads_each(8, 4, 2.0) == 1


def test_nothing_to_divide() -> None:
    for cpus, ranks in (([], 1), (machine(2), 0)):
        with pytest.raises(ValueError, match=f"^{ranks} ranks cannot share {len(cpus)} cores$"):
            divide(cpus, ranks)
