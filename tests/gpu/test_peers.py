"""Collectives between processes that share a GPU: its memory mapped by handles, and by descriptors.

The programs of tests/engines/test_peer_collectives.py, compiled by nvcc. Their kernels wait for
each other, so compute-sanitizer, which may run one after the other, does not look at them.
Times mean nothing, since the processes take turns on the device.
"""

from __future__ import annotations

import pytest
from support import gpu, programs
from support.patience import ENDS

pytestmark = pytest.mark.gpu

WAYS = ("handle", "descriptor")
CASES = ["bits", "pulls", "pairs", "unlike_pairs", "two", "one_queue", "back_to_back"]
CASES += ["mismatch", "late", "abort", "death", "refused"]
SOAKED = 400.0  # seconds per soak test; each is a step of make gpu-check
every_way = pytest.mark.parametrize("way", WAYS)
by_two_and_four = pytest.mark.parametrize("ranks", [2, 4], ids=["by_two", "by_four"])


@every_way
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_peers(case: str, seed: str, way: str) -> None:
    """2 to 4 processes, in rounds."""
    environment = {"FC_TEST_WINDOWS": way}
    program = gpu.programs()["peer_collectives"]
    programs.check(program, case, seed, environment=environment, timeout=ENDS)


@every_way
@pytest.mark.parametrize("settings", [{"FC_TEST_SLOT_BYTES": "2048"}, {"FC_TEST_POOL": "some"}])
def test_peers_in_one_launch_and_in_place(settings: dict[str, str], way: str) -> None:
    environment = {"FC_TEST_WINDOWS": way, **settings}
    program = gpu.programs()["peer_collectives"]
    programs.check(program, "bits", "3", environment=environment, timeout=ENDS)


@every_way
@pytest.mark.parametrize("case", ["death_in_a_wait", "death_in_a_copy"])
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_peers_of_a_rank_killed_with_kernels_at_work(case: str, seed: str, way: str) -> None:
    environment = {"FC_TEST_WINDOWS": way}
    programs.check(gpu.programs()["peer_soak"], case, seed, environment=environment, timeout=ENDS)


def _soak(case: str, way: str, ranks: int) -> None:
    environment = {"FC_TEST_WINDOWS": way, "FC_TEST_RANKS": str(ranks)}
    program = gpu.programs()["peer_soak"]
    print(programs.check(program, case, environment=environment, timeout=SOAKED))


@pytest.mark.timeout(SOAKED + 60)
@every_way
@by_two_and_four
def test_soak_replays(ranks: int, way: str) -> None:
    """1,000 replays among operations, each compared to the bit with the reference."""
    _soak("replays", way, ranks)


@pytest.mark.timeout(SOAKED + 60)
@every_way
@by_two_and_four
def test_soak_growth(ranks: int, way: str) -> None:
    """A process holds no more after 10,000 operations than after the first tenth."""
    _soak("growth", way, ranks)


@pytest.mark.parametrize("leak", ["host", "device"])
def test_growth_is_noticed(leak: str) -> None:
    environment = {"FC_TEST_LEAK": leak, "FC_TEST_ROUNDS": "4000"}
    result = programs.run(gpu.programs()["peer_soak"], "growth", environment=environment)
    assert result.returncode != 0 and f"{'heap' if leak == 'host' else leak}: " in result.stdout
