"""What torch's settings of talkativeness make a group tell."""

from __future__ import annotations

import contextlib
import io
import logging
import re

import pytest
import torch.distributed as dist
from support.ranks import World, run_ranks

START = "[rank0]: fastcomm: group '0' of all 2 ranks: "


def _told(world: World, level: str) -> str:
    """Form a group; return what is printed. In these processes torch has been imported before."""
    dist.set_debug_level_from_env()
    text = io.StringIO()
    if level:
        logging.getLogger("fastcomm").setLevel(level)
        logging.getLogger("fastcomm").addHandler(logging.StreamHandler(text))
    with contextlib.redirect_stderr(text):
        world.init()
    return text.getvalue()


@pytest.mark.parametrize(
    "environment",
    [
        {"TORCH_CPP_LOG_LEVEL": "INFO"},
        {"TORCH_DISTRIBUTED_DEBUG": "INFO"},
        {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    ],
    ids=lambda given: "=".join(*given.items()),
)
def test_the_first_rank_tells_of_a_group_once(environment: dict[str, str]) -> None:
    changed = {"FASTCOMM_ONE_SHOT_BYTES": "1024", "FASTCOMM_TUNING": "off"}
    first, second = run_ranks(2, _told, "", environment=environment | changed)
    (line,) = first.splitlines()
    assert line.startswith(f"{START}shared memory (memfd); slots of up to ")
    assert " MiB a rank, as they are used, within the 4096 MiB of FASTCOMM_SEGMENT_MB; " in line
    assert re.search(r"; timeout \d+ s; ", line)
    assert "; FASTCOMM_ONE_SHOT_BYTES=1024 (default 0)" in line
    assert "FASTCOMM_SPIN_US" not in line and "FASTCOMM_WAIT_WARNING_S" not in line
    assert second == ""


def test_a_group_over_gloo_says_why() -> None:
    environment = {"TORCH_DISTRIBUTED_DEBUG": "INFO", "FASTCOMM_TRANSPORT": "gloo"}
    first, _ = run_ranks(2, _told, "ERROR", environment=environment)
    assert f"{START}Gloo does everything: rank 0 has no shared memory: FASTCOMM_TRANSPORT" in first


def test_a_listener_is_told() -> None:
    first, second = run_ranks(2, _told, "INFO")
    assert first.startswith(START) and len(first.splitlines()) == 1
    assert second == ""


def test_nobody_is_told_who_does_not_ask() -> None:
    assert run_ranks(2, _told, "") == ["", ""]
