"""What several files of these tests need around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.flight import VARIABLES
from support.namespaces import Host, switched_hosts, two_hosts, why_no_hosts, why_no_switch


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Yield two hosts, as network namespaces; skip where there can be none."""
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    with two_hosts() as pair:
        yield pair


@pytest.fixture(scope="module")
def four_hosts() -> Iterator[list[Host]]:
    """Yield four hosts at one switch, as `hosts`."""
    if (reason := why_no_switch()) is not None:
        pytest.skip(reason)
    with switched_hosts(4) as several:
        yield several


@pytest.fixture
def recorder_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the machine's variables of torch's flight recorder out of the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
