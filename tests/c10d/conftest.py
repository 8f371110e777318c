"""What several files of these tests need around them."""

from __future__ import annotations

import pytest
from support.flight import VARIABLES


@pytest.fixture
def recorder_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the machine's variables of torch's flight recorder out of the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
