"""What the schedule template costs a CPU, against the same steps written out by hand.

    python benchmarks/schedule_cost.py [--json results.jsonl]

Builds benchmarks/cpp/schedule_cost.cpp with the layers below torch and runs it: all_reduce of
float32 over two processes, both variants alternately in one run (the source says how). Prints
medians a operation and their ratio, and optionally writes a row for each case as JSON lines.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import native_build  # noqa: E402

from fastcomm.bench.records import RecordWriter  # noqa: E402
from fastcomm.bench.stats import Summary, summarize  # noqa: E402

CLAIM = 1.05  # the template may cost so much, at most
BLOCK_BYTES = 512 * 1024  # the default of FASTCOMM_BLOCK_BYTES


@dataclass(frozen=True)
class Case:
    """One message size; a sample is the time of ``batch`` operations."""

    schedule: str
    nbytes: int
    samples: int
    batch: int


CASES = (
    Case("one-shot", 8, 6000, 16),
    Case("one-shot", 4096, 6000, 8),
    Case("two-shot", 64 * 1024, 3000, 1),
    Case("two-shot", 1024 * 1024, 600, 1),
    Case("two-shot", 25 * 1024 * 1024, 40, 1),
)


def build() -> Path:
    """Compile what has changed; returns the program."""
    library = native_build.build_library(None)
    program = ROOT / "build" / "schedule_cost"
    source = ROOT / "benchmarks" / "cpp" / "schedule_cost.cpp"
    command = [*native_build.compiler(), *native_build.standard_flags(native_build.compiler())]
    command += [*native_build.library_flags(None), "-I", str(ROOT / "csrc")]
    command += [str(source), str(library), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def measure(program: Path, case: Case, block_bytes: int) -> dict[str, list[int]]:
    """Times of single samples in nanoseconds, for each variant."""
    words = [case.schedule, case.nbytes, case.samples, case.batch, block_bytes]
    output = subprocess.run(
        [str(program), *map(str, words)], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    lines = (line.split() for line in output.splitlines())
    return {name: [int(time) for time in times] for name, *times in lines}


def an_operation(summary: Summary, batch: int) -> float:
    """Median of one operation in microseconds."""
    return summary.median_us / batch


def main() -> int:
    """Measure every case; exit status 1 if the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="processes a case (default 3)")
    parser.add_argument("--block-bytes", type=int, default=BLOCK_BYTES)
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    arguments = parser.parse_args()
    program = build()
    writer = RecordWriter(arguments.json, sys.argv) if arguments.json else None
    print(f"{'schedule':<10}{'bytes':>10}{'template us':>14}{'by hand us':>14}{'ratio':>8}")
    worst = 0.0
    for case in CASES:
        times: dict[str, list[int]] = {"template": [], "by-hand": []}
        for _ in range(arguments.rounds):
            for name, more in measure(program, case, arguments.block_bytes).items():
                times[name] += more
        template, by_hand = summarize(times["template"]), summarize(times["by-hand"])
        ratio = template.median_us / by_hand.median_us
        worst = max(worst, ratio)
        print(
            f"{case.schedule:<10}{case.nbytes:>10}{an_operation(template, case.batch):>14.3f}"
            f"{an_operation(by_hand, case.batch):>14.3f}{ratio:>8.3f}",
            flush=True,
        )
        if writer:
            row = {"benchmark": "schedule_cost", "ranks": 2, "dtype": "float32", **asdict(case)}
            row |= {"block_bytes": arguments.block_bytes, "ratio": ratio}
            # Of samples; divide by `batch` for one operation.
            row |= {"template_samples": asdict(template), "by_hand_samples": asdict(by_hand)}
            writer.write(row)
    if writer:
        writer.close()
    verdict = "holds" if worst <= CLAIM else "DOES NOT HOLD"
    print(f"at most {CLAIM:.2f}: {verdict} (worst ratio {worst:.3f})")
    return 0 if worst <= CLAIM else 1


if __name__ == "__main__":
    sys.exit(main())
