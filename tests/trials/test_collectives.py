"""Random collectives against plain torch, and beside Gloo. `trials.collectives` replays one."""

from __future__ import annotations

import pytest
from faults.schedule import CONFIGURATIONS
from trials.collectives import FUTURE, TRIALS
from trials.launch import check

# By default, and with other ways for tensors of these sizes: block by block.
SETTINGS: list[dict[str, str]] = [*CONFIGURATIONS.values(), {"FASTCOMM_BLOCK_BYTES": "4096"}]


def _play(first: int, count: int, environment: dict[str, str] | None = None) -> None:
    found = check(TRIALS, first, count, environment)
    assert not [text for text in found.differences if FUTURE in text]


def test_random_collectives() -> None:
    _play(0, 310)  # objects of two, three and four ranks are among them


@pytest.mark.release
@pytest.mark.parametrize("thousand", range(len(SETTINGS)))
def test_more_random_collectives(thousand: int) -> None:
    _play(1000 * thousand, 1000, SETTINGS[thousand])
