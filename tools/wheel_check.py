"""Install one wheel beside each torch, without a compiler, and run torch's own tests on it.

    python tools/wheel_check.py dist/fastcomm-...whl             # every release in the wheel
    python tools/wheel_check.py WHEEL --torch 2.13.0 --record    # and add it to docs/wheels.json
    python tools/wheel_check.py --table                          # what has been recorded

Each torch has an environment of its own in ``build/wheel-check``, for the Python that runs this,
and the kind of build, for CPU or CUDA, that pip chooses. pip sees neither compiler nor ninja. The
tests are those of ``make conformance ARGS="--ranks 2"``. The exit status is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import wheels

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "wheels.json"
LONGEST_INSTALL = 20.0  # seconds
TOOLS = ("numpy", "pytest", "hypothesis")  # of the tests
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")  # that torch has wheels for
HEADS = ("Python", "torch", "installed in")  # and what torch's tests came to
SAY = (
    "import json, torch; from fastcomm import _native;"
    "print(json.dumps([str(torch.__version__), _native.load().__file__]))"
)


def environment_for(version: str) -> Path:
    """Return a folder with an environment that has this torch; made first."""
    python = minor_of(platform.python_version())
    place = (ROOT / "build" / "wheel-check" / f"python{python}-torch{version}").resolve()
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, f"torch=={version}", *TOOLS], check=True)
        (place / "ready").touch()
    return place


def check(wheel: Path, version: str) -> dict[str, Any]:
    """Install, load and test; return what is recorded."""
    place = environment_for(version)
    bare = {**os.environ, "PATH": str(place / "bin")}
    for name in ("PYTHONPATH", "CXX", "CC"):
        bare.pop(name, None)
    pip = [str(place / "bin" / "pip"), "--disable-pip-version-check"]
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "fastcomm"], env=bare, check=True)
    begin = time.monotonic()
    subprocess.run([*pip, "install", "--quiet", str(wheel)], env=bare, check=True)
    seconds = round(time.monotonic() - begin, 1)
    python = str(place / "bin" / "python")
    said = subprocess.run([python, "-c", SAY], env=bare, cwd=place, capture_output=True, text=True)
    if said.returncode != 0:
        raise SystemExit(f"with torch {version} the wheel does not load:\n{said.stderr}")
    torch, library = json.loads(said.stdout)
    print(f"torch {torch}: in {seconds} s; {Path(library).relative_to(place)}", flush=True)
    results = place / "conformance.json"
    command = [python, "-m", "conformance.run", "--ranks", "2", "--json", str(results)]
    tests = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    status = subprocess.run(command, env=tests, cwd=ROOT / "tests").returncode
    (report,) = json.loads(results.read_text())["reports"]
    return {
        "python": platform.python_version(),
        "torch": torch,
        "install_seconds": seconds,
        "conformance": report["counts"],
        "passed": status == 0 and seconds <= LONGEST_INSTALL,
    }


def minor_of(python: str) -> str:
    """Return "3.11" of "3.11.7"."""
    return python.rpartition(".")[0]


def with_rows(
    kept: list[dict[str, Any]], wheel: Path, found: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a record with new rows; of this Python, only others of the very same file are kept."""
    python = platform.python_version()
    new = {"python": python, "wheel": wheel.name, "bytes": wheel.stat().st_size}
    checked = {row["torch"] for row in found}
    of_file = [row for made in kept if {**made, **new} == made for row in made["rows"]]
    merged = [*found, *(row for row in of_file if row["torch"] not in checked)]
    rest = [made for made in kept if made["python"] != python]
    return [*rest, {**new, "rows": sorted(merged, key=lambda row: str(row["torch"]))}]


def rows(recorded: list[dict[str, Any]], python: str, outcomes: list[str]) -> list[list[str]]:
    """Return what has been recorded for "3.11" as rows of the table; a row too if nothing has."""
    found = [
        [python, row["torch"], f"{row['install_seconds']} s"]
        + [str(row["conformance"].get(outcome, 0)) for outcome in outcomes]
        for made in recorded
        if minor_of(made["python"]) == python
        for row in made["rows"]
    ]
    return found or [[python, "not tried", *[""] * (1 + len(outcomes))]]


def print_table(style: str) -> None:
    """Print what has been recorded, for each Python that torch has wheels for."""
    from tabulate import tabulate

    recorded = json.loads(RECORD.read_text())
    outcomes = sorted(
        {name for made in recorded for row in made["rows"] for name in row["conformance"]}
    )
    table = [row for python in PYTHONS for row in rows(recorded, python, outcomes)]
    print(tabulate(table, [*HEADS, *outcomes], tablefmt=style, disable_numparse=True))


def main(arguments: list[str] | None = None) -> int:
    """Check one torch after the other; return the exit status."""
    parser = argparse.ArgumentParser(description="Check a wheel with every torch it serves.")
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument("--torch", nargs="+", default=wheels.releases(), metavar="VERSION")
    parser.add_argument("--record", action="store_true", help=f"add to {RECORD.relative_to(ROOT)}")
    parser.add_argument("--table", action="store_true", help="print what has been recorded")
    parser.add_argument("--style", default="simple", help="of the table, in tabulate's words")
    options = parser.parse_args(arguments)
    if options.table:
        print_table(options.style)
        return 0
    if options.wheel is None:
        parser.error("name a wheel, or ask for the --table")
    wheel = options.wheel.resolve()
    found = [check(wheel, version) for version in options.torch]
    for row in found:
        print(json.dumps(row))
    if options.record:
        kept = json.loads(RECORD.read_text()) if RECORD.exists() else []
        RECORD.write_text(json.dumps(with_rows(kept, wheel, found), indent=1) + "\n")
    return 0 if all(row["passed"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
