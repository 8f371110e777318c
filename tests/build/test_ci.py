"""Files that .ci/run names."""

from __future__ import annotations

from pathlib import Path


def test_tests_of_the_second_flavour_exist(root: Path) -> None:
    """Run by several workers, pytest runs nothing if one is missing, and does not say which."""
    lines = (root / "tests" / "second_flavour.txt").read_text().split()
    named = [line for line in lines if line.startswith("tests/")]
    assert len(named) > 20
    for place, _, test in (name.partition("::") for name in named):
        assert (root / place).exists(), place
        assert not test or f"\ndef {test}(" in (root / place).read_text(), (place, test)
