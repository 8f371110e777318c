"""The recipes of CONTRIBUTING.md name the files that something added last time is named in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# By recipe: what was added, as sources name it, and where sources of that kind lie.
EXAMPLES = {
    "an engine": (r"\bDelegateEngine>?\(", "csrc", r"csrc/c10d/engines/"),
    "an element type": (r"\bkUInt16\b", "csrc", r"^$"),
    "a setting": (r"FASTCOMM_WINDOW_BYTES", "csrc", r"^$"),
    "a command": (r"\"compare\"", "fastcomm", r"^$"),
}


@pytest.mark.parametrize("recipe", EXAMPLES)
def test_a_recipe_names_every_file(recipe: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## Adding {recipe}\n")[2]
    listed = re.search(r"Files \((\d+)\): (.*?)\.\n", text.partition("\n## ")[0], re.DOTALL)
    assert listed is not None
    named = set(re.findall(r"`([^`]+)`", listed[2]))
    pattern, folder, own = EXAMPLES[recipe]
    found = {
        name
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".h", ".cpp", ".cu", ".py")
        and not re.search(own, name := path.relative_to(ROOT).as_posix())
        and re.search(pattern, path.read_text())
    }
    assert found == named and len(named) == int(listed[1])
