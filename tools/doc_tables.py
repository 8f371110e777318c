"""Tables of measurements in the documents, made by the command that stands above each.

    python tools/doc_tables.py            # make them anew from the records
    python tools/doc_tables.py --check    # exit status 1 if any would change

A comment ``<!-- table: ARGUMENTS -->`` has the arguments of ``fastcomm bench``, or of a module
after ``-m``, without a style. The table below it is what that prints.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))

DOCUMENTS = (
    *("README.md", "docs/performance.md", "docs/gradients.md", "docs/gpus.md"),
    "docs/advise.md",
    "docs/settings.md",
    "docs/scaling.md",
    "docs/wheels.md",
)
_TABLE = re.compile(r"<!-- table: (.*?) -->\n+(?:(?:\|.*\n|\n(?=\|))*)\n*")


@contextlib.contextmanager
def _in_the_root() -> Iterator[None]:
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)


def made_by(arguments: str) -> str:
    """Return the tables that a command prints, with empty lines between.

    Raises:
        ValueError: it fails.
    """
    words = shlex.split(arguments)
    name = words[1] if words[0] == "-m" else "fastcomm.bench.cli"
    rest = words[2:] if words[0] == "-m" else words
    printed = io.StringIO()
    with _in_the_root(), contextlib.redirect_stdout(printed):
        status = importlib.import_module(name).main([*rest, "--style", "github"])
    if status != 0:
        raise ValueError(f"{name} {' '.join(rest)}: exit status {status}")
    lines = printed.getvalue().splitlines()
    tables = [
        list(group)
        for is_table, group in itertools.groupby(lines, lambda line: line.startswith("|"))
        if is_table
    ]
    return "\n".join("".join(line + "\n" for line in table) for table in tables)


def with_tables(text: str) -> str:
    """Return a document with all its tables made anew."""
    return _TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{made_by(found[1])}\n", text)


def main(arguments: list[str] | None = None) -> int:
    """Make or check all tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    stale = 0
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        anew = with_tables(text)
        if anew != text:
            stale += 1
            print(f"{name}: {'is not what the records say' if options.check else 'made anew'}")
            if not options.check:
                path.write_text(anew)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
