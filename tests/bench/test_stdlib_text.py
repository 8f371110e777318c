"""The text of the training benchmark, and who gets which part of it."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import script


@pytest.fixture(scope="module")
def stdlib() -> ModuleType:
    return script.load("stdlib_text")


def test_it_is_the_text_of_the_library_up_to_the_limit(stdlib: ModuleType) -> None:
    folder = Path(sysconfig.get_paths()["stdlib"])
    first = min(folder.glob("*.py"))
    text = stdlib.load_text(1000)
    wanted = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))[:1000]
    assert bytes(text.values.tolist()) == wanted
    assert wanted.startswith(first.read_bytes()[:1000])
    assert len(stdlib.load_text().values) <= stdlib.LIMIT
    assert stdlib.load_text(999).sha256 != text.sha256


def test_a_step_has_the_same_sequences_however_they_are_dealt(stdlib: ModuleType) -> None:
    text = stdlib.Text(torch.arange(10_000), "")
    batch = stdlib.batch(text, 3, 1, sequences=8, length=5)
    assert torch.equal(batch, stdlib.batch(text, 3, 1, sequences=8, length=5))
    assert all(torch.equal(row, torch.arange(row[0], row[0] + 5)) for row in batch)
    for other in (stdlib.batch(text, 4, 1, 8, 5), stdlib.batch(text, 3, 0, 8, 5)):
        assert not torch.equal(batch, other)
    assert len(batch[:, 0].unique()) == 8
