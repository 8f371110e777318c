"""Programs for a GPU compile and link without one; those that need no device run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import nvcc, programs

pytestmark = pytest.mark.nvcc

# Programs with a case "refused", of wrong arguments, which needs no device.
REFUSING = ["multi_copy", "multi_reduce", "multi_combine", "multi_gradient"]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Path]:
    """Return the programs of ``make gpu-check``, compiled here unless `.ci/run` has done so."""
    return nvcc.programs()


def test_all_of_them_compile(compiled: dict[str, Path]) -> None:
    assert len(compiled) > len(REFUSING)
    for name, program in compiled.items():
        assert program.stat().st_size > 100_000, name


@pytest.mark.parametrize("name", REFUSING)
def test_those_that_need_no_device_run(compiled: dict[str, Path], name: str) -> None:
    programs.check(compiled[name], "refused")
