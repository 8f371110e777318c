"""What a call's record costs a rank, alone: one thread, no torch.

    python benchmarks/record_cost.py [--json FILE]

Builds benchmarks/cpp/record_cost.cpp with the layers below torch. Prints the median time to begin,
number, start and end a record, and that of the three readings of the counter in it. The exit status
is 1 if it is above `MOST_NS`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import native_build  # noqa: E402

from fastcomm._measure.environment import describe  # noqa: E402

MOST_NS = {"counter": 40.0, "clock": 100.0}  # with a counter of constant rate, and without


def build() -> Path:
    """Compile what has changed; return the path of the program."""
    library = native_build.build_library(None)
    program = ROOT / "build" / "record_cost"
    compiler = native_build.compiler()
    flags = [*native_build.standard_flags(compiler), *native_build.library_flags()]
    source = ROOT / "benchmarks" / "cpp" / "record_cost.cpp"
    command = [*compiler, *flags, "-I", str(ROOT / "csrc"), str(source), str(library)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def measure(batches: int = 200, calls: int = 10_000) -> dict[str, str | float]:
    """Return the clock's kind, and medians over batches in ns: ``record``, ``readings``."""
    command = [str(build()), str(batches), str(calls)]
    clock, *lines = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=600
    ).stdout.split("\n")
    both = [tuple(map(float, line.split())) for line in lines if line]
    record, readings = (statistics.median(column) for column in zip(*both, strict=True))
    return {"clock": clock, "record": record, "readings": readings}


def main() -> int:
    """Measure, print, and compare with the claim."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    found = measure()
    print(
        f"a record: {found['record']:.1f} ns, of which three readings of the {found['clock']}: "
        f"{found['readings']:.1f} ns"
    )
    if options.json:
        machine = describe(sys.argv)
        Path(options.json).write_text(json.dumps({**found, "environment": machine}) + "\n")
    return int(float(found["record"]) > MOST_NS[str(found["clock"])])


if __name__ == "__main__":
    sys.exit(main())
