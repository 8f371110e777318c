"""How long the tests and the steps of ``.ci/run`` took, and what grew since the last record.

    python tools/durations.py build/junit.xml                  # what grew since the last record
    python tools/durations.py build/*.xml --record "a name"    # and add a record of these times

``make test`` leaves ``build/junit.xml``; ``.ci/run`` leaves ``build/ci`` with the steps' times and
the results of both flavours, and ends with this. Records are kept in ``docs/durations.json``, the
newest last; the tests are started in the order of its times, the longest file first.
"""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "durations.json"
# Noise: a shared machine may take half as long again, and a few seconds do not matter.
FACTOR = 1.5
SECONDS = 10.0
LIMIT = 25 * 60  # for all of .ci/run


def records() -> list[dict[str, Any]]:
    """Return what was recorded, oldest first."""
    return list(json.loads(RECORDS.read_text())) if RECORDS.exists() else []


def expected() -> dict[str, float]:
    """Return seconds by file ("tests/c10d/test_work.py") of the newest record, if any."""
    known = records()
    return {str(name): float(time) for name, time in known[-1]["files"].items()} if known else {}


def read(results: Iterable[Path]) -> tuple[dict[str, float], Counter[str]]:
    """Return seconds by file, and numbers of tests passed, failed and skipped, from junit files."""
    files: dict[str, float] = defaultdict(float)
    outcomes: Counter[str] = Counter()
    for path in results:
        for case in ElementTree.parse(path).iter("testcase"):
            files[f"{case.get('classname', '').replace('.', '/')}.py"] += float(case.get("time", 0))
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            outcomes[kinds.pop() if kinds else "passed"] += 1
    return dict(files), outcomes


def read_steps(path: Path | None) -> dict[str, float]:
    """Return seconds by step, from a file with a line "seconds<tab>step" for each."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    return {name: float(seconds) for seconds, name in (line.split("\t", 1) for line in lines)}


def grown(now: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Return a line for each entry that takes much longer than before, the worst first."""
    more = {name: time - before.get(name, 0.0) for name, time in now.items()}
    return [
        f"{name}: {before.get(name, 0.0):.0f} -> {now[name]:.0f} s"
        for name, seconds in sorted(more.items(), key=lambda item: -item[1])
        if seconds > SECONDS and now[name] > FACTOR * before.get(name, 0.0)
    ]


def longest(now: Mapping[str, float], count: int = 15) -> list[str]:
    """Return a line for each of the entries that take longest."""
    ordered = sorted(now.items(), key=lambda item: -item[1])
    return [f"{seconds:7.1f} s  {name}" for name, seconds in ordered[:count]]


def report(files: Mapping[str, float], outcomes: Counter[str], steps: Mapping[str, float]) -> str:
    """Return what there is to say about a run."""
    lines = [f"{sum(outcomes.values())} tests, {sum(files.values()):.0f} s of them all: {outcomes}"]
    lines += longest(files)
    if steps:
        lines += ["steps:", *longest(steps, len(steps))]
        total = sum(steps.values())
        lines.append(f"{total:7.1f} s  together; the limit is {LIMIT} s")
        if total > LIMIT:
            lines.append("TOO LONG: find out what grew before anything else is added")
    known = records()
    if known:
        last = known[-1]
        more = [*grown(steps, last["steps"]), *grown(files, last["files"])]
        lines.append(f"grown since {last['name']}: {'nothing' if not more else ''}")
        lines += [f"  {line}" for line in more]
    return "\n".join(lines)


def table(count: int = 12) -> str:
    """Return the newest record: its steps and its longest files, without what takes no time."""
    newest = records()[-1]
    steps = {name: time for name, time in newest["steps"].items() if time >= SECONDS}
    files = sorted(newest["files"].items(), key=lambda item: -item[1])[:count]
    rows = [f"| | {newest['name']} |", "|---|---|"]
    rows += [f"| {name} | {time:.0f} |" for name, time in [*steps.items(), *files]]
    return "\n".join(rows)


def main() -> None:
    """Report, and record if told to."""
    parser = argparse.ArgumentParser(description="What the tests took, and what grew.")
    parser.add_argument("results", type=Path, nargs="*", help="files that pytest --junitxml wrote")
    parser.add_argument("--table", action="store_true", help="print the newest record")
    parser.add_argument("--steps", type=Path, help="lines of seconds, a tab and a step's name")
    parser.add_argument("--record", metavar="NAME", help="add these times to docs/durations.json")
    options = parser.parse_args()
    if options.table:
        print(table())
        return
    files, outcomes = read(options.results)
    steps = read_steps(options.steps)
    print(report(files, outcomes, steps))
    if options.record:
        entry = {"name": options.record, "tests": dict(outcomes), "steps": steps}
        entry["files"] = {name: round(files[name], 1) for name in sorted(files)}
        RECORDS.write_text(json.dumps([*records(), entry], indent=1) + "\n")


if __name__ == "__main__":
    main()
