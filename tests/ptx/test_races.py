"""nvcc's own code of the kernels in threads of the host, at which ThreadSanitizer looks."""

from __future__ import annotations

import pytest
from ptx import build
from support import programs

pytestmark = pytest.mark.nvcc

RACES = [
    *(("peer_threads", case, "") for case in ("rounds", "at_once")),
    *(("peer_threads", case, "some") for case in ("rounds", "mixed")),
    *((f"multi_{name}", "race", "") for name in ("copy", "reduce", "combine", "gradient")),
    ("multi_gradient", "race_alone", ""),
]


@pytest.mark.parametrize(("name", "case", "pool"), RACES)
def test_no_data_race(name: str, case: str, pool: str) -> None:
    """Neither within a block, nor between blocks, nor between ranks that are threads."""
    program = build.program(name, build.WATCHED)
    environment = build.environment(more={"FC_TEST_POOL": pool})
    programs.check(program, case, "1", environment=environment)
