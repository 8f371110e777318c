"""What ``make demo`` runs: train over two backends, compare the bits, measure, show.

The exit status is 0 only if every printed claim holds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import digits

from fastcomm._measure.environment import describe, summary_line
from fastcomm._measure.launch import RankError
from fastcomm._measure.line_up import label_backends
from fastcomm.bench.cli import main as bench
from fastcomm.bench.records import RecordWriter

BANNER = """\
fastcomm demo (about three minutes): {environment}

  1. train a small convolutional network on 1,437 handwritten digits with stock
     DistributedDataParallel, {ranks} CPU processes, over {first}
  2. the same script over {second}: only the backend's name differs
  3. compare every loss and the final weights of the two runs, bit for bit
  4. time all_reduce, broadcast, all_gather and barrier over both, interleaved, and plot
"""

DRIFT = 1.15  # ratio of times without communication above which a note is printed


class Problems:
    """Claims that do not hold; the demo goes on and reports them at the end."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def expect(self, holds: bool, claim: str) -> None:
        """Print ``claim`` with its verdict."""
        print(f"  {'yes' if holds else 'NO '}  {claim}", flush=True)
        if not holds:
            self.found.append(claim)


def train(label: str, options: digits.Options, folder: Path, problems: Problems) -> dict[str, Any]:
    """Train once, and return the record, also written to ``folder``; {} if training failed."""
    try:
        record = digits.run(options)
    except RankError as error:
        print(f"  training over {label} failed: {error}", file=sys.stderr)
        problems.found.append(f"training over {label}")
        return {}
    digits.print_result(record)
    with RecordWriter(folder / f"digits-{label}.jsonl", ["benchmarks/demo.py"]) as writer:
        writer.write(record)
    claim = f"held-out accuracy is at least {digits.TARGET_ACCURACY}"
    if options.max_steps is None:
        problems.expect(record["accuracy"][-1] >= digits.TARGET_ACCURACY, claim)
    problems.expect(record["weights_equal_on_all_ranks"], "all ranks hold the same weights")
    return record


def compare(first: dict[str, Any], second: dict[str, Any], problems: Problems) -> None:
    """Compare two records bit for bit."""
    pairs = [
        (rank, step, a, b)
        for rank, (ours, theirs) in enumerate(zip(first["losses"], second["losses"], strict=True))
        for step, (a, b) in enumerate(zip(ours, theirs, strict=True))
    ]
    different = [pair for pair in pairs if pair[2] != pair[3]]
    count = f"{first['steps']} steps on {len(first['losses'])} ranks"
    problems.expect(not different, f"all losses are equal bit for bit ({count})")
    for rank, step, a, b in sorted(different, key=lambda pair: pair[1])[:1]:
        print(f"       first difference: step {step}, rank {rank}: {a} and {b}")
    equal = first["weights_sha256"] == second["weights_sha256"]
    problems.expect(equal, "the final weights and buffers are equal bit for bit")


def result_lines(labels: list[str], records: list[dict[str, Any]]) -> list[str]:
    """Return lines of text with the two records side by side."""
    lines = [f"  {'':22}" + "".join(f"{label:>14}" for label in labels)]
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("held-out accuracy", lambda r: f"{r['accuracy'][-1]:.4f}"),
        ("median step", lambda r: f"{r['step_ms']:.3f} ms"),
        ("step under no_sync()", lambda r: f"{r['no_sync_step_ms']:.3f} ms"),
        ("difference", lambda r: f"{r['step_ms'] - r['no_sync_step_ms']:.3f} ms"),
        ("communication's share", lambda r: f"{r['communication_share']:.1%}"),
    ]
    for name, show in rows:
        lines.append(f"  {name:22}" + "".join(f"{show(record):>14}" for record in records))
    first, second = (record["no_sync_step_ms"] for record in records)
    if max(first, second) > DRIFT * min(first, second):
        lines.append(
            "  note: steps under no_sync() exchange nothing and yet took different times, so the\n"
            "  machine's speed changed between the two runs: compare the shares, not the times"
        )
    return lines


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", default="fastcomm,gloo", help="two names (fastcomm,gloo)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--max-steps", type=int, help="stop the training early")
    parser.add_argument("--sizes", default="8:64M:8", help="of the benchmark (8:64M:8)")
    parser.add_argument("--budget", default="75", help="seconds for the benchmark (75)")
    parser.add_argument("--out", type=Path, default=Path("demo-results"))
    arguments = parser.parse_args(argv)
    backends = tuple(arguments.backends.split(","))
    if len(backends) != 2:
        parser.error("--backends needs two names")

    start = time.monotonic()
    labels = label_backends(backends)
    folder = arguments.out / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True)
    environment = summary_line(describe([]))
    print(
        BANNER.format(
            environment=environment, ranks=arguments.ranks, first=labels[0], second=labels[1]
        )
    )
    problems = Problems()
    records = []
    for number, (label, backend) in enumerate(zip(labels, backends, strict=True), 1):
        print(f"[{number}/4] training over {label}", flush=True)
        options = digits.Options(
            backend, arguments.ranks, arguments.epochs, max_steps=arguments.max_steps
        )
        records.append(train(label, options, folder, problems))
        print()
    print(f"[3/4] {labels[0]} and {labels[1]} compared")
    if all(records):
        print("\n".join(result_lines(labels, records)))
        if arguments.ranks == 2:
            compare(records[0], records[1], problems)
        else:
            print("  bits: only sums of two ranks are the same in any order; not compared")
    else:
        print("  nothing to compare")
    both = " and ".join(labels)
    print(f"\n[4/4] collectives over {both}, about {arguments.budget} s", flush=True)
    words = ["--backends", arguments.backends, "--ranks", str(arguments.ranks)]
    words += ["--sizes", arguments.sizes, "--budget", arguments.budget, "--out", str(folder)]
    problems.expect(bench(words) == 0, "the benchmark ran, and every result was exact")

    print(f"\nfinished after {time.monotonic() - start:.0f} s; results:")
    for path in sorted(folder.iterdir()):
        print(f"  {path}")
    for claim in problems.found:
        print(f"FAILED: {claim}", file=sys.stderr)
    return 1 if problems.found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
