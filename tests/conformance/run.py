"""Run torch's own tests of c10d and DistributedDataParallel for Gloo, on fastcomm.

make conformance ARGS="--ranks 2 -k all_reduce"
make conformance ARGS="--backend gloo --json gloo.json"
make conformance ARGS="--ranks 8 -k group"     tests that torch skips with fewer ranks
make conformance ARGS="--ranks 4 --hosts 2"    over network namespaces as hosts, as root
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from conformance.launch import Launcher
from conformance.rank import HANG
from conformance.report import Report
from conformance.short import SHORT
from conformance.substitute import FASTCOMM
from support.namespaces import switched_hosts


def chosen_tests(known: dict[str, str | None], options: argparse.Namespace) -> list[str]:
    """Return the tests asked for, without those of the short list that this torch lacks."""
    if options.only:
        tests = [test for test in sorted(known) if test in options.only]
    elif options.short:
        tests = [test for test in SHORT if test in known]
    else:
        tests = sorted(known.keys() - {HANG})
    return [test for test in tests if not options.k or any(part in test for part in options.k)]


def run_one_size(size: int, options: argparse.Namespace) -> Report:
    report = Report(options.backend, size)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        several = options.hosts > 1
        hosts = stack.enter_context(switched_hosts(options.hosts)) if several else []
        launcher = Launcher(size, options.backend, options.timeout, hosts)
        tests = chosen_tests(launcher.tests, options)
        for number, test in enumerate(tests, 1):
            result = launcher.run(test)
            report.results.append(result)
            print(f"[{number}/{len(tests)}] {report.line(result)}", flush=True)
    report.seconds = time.monotonic() - start
    return report


def run_in_own_process(size: int, arguments: list[str]) -> dict[str, Any]:
    """Run each number of ranks in a process whose fork server has loaded torch's tests for it."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
        path = Path(directory, "report.json")
        command = [sys.executable, "-m", "conformance.run", *arguments]
        subprocess.run([*command, "--ranks", str(size), "--json", str(path)], check=False)
        if not path.exists():
            sys.exit(f"the run with {size} ranks ended without a report")
        (report,) = json.loads(path.read_text())["reports"]
        return dict(report)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--ranks", default="2,3,4", help="numbers of ranks, with commas between (2,3,4)"
    )
    parser.add_argument("--hosts", type=int, default=1, help="hosts with as many ranks each (1)")
    parser.add_argument("--backend", choices=["fastcomm", "gloo"], default="fastcomm")
    parser.add_argument("-k", action="append", metavar="PART", help="tests with this in their name")
    parser.add_argument("--only", action="append", metavar="TEST", help="the test of this name")
    parser.add_argument("--short", action="store_true", help="a choice that takes seconds")
    parser.add_argument("--timeout", type=float, default=150, help="seconds that a test may take")
    parser.add_argument("--json", type=Path, help="write the results as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    options = parse(given)
    sizes = [int(size) for size in options.ranks.split(",")]
    if any(size % options.hosts for size in sizes):
        sys.exit(f"--ranks {options.ranks}: {options.hosts} hosts cannot have as many ranks each")
    if len(sizes) == 1:
        report = run_one_size(sizes[0], options)
        print(report.summary(), flush=True)
        reports = [report.as_json()]
    else:
        reports = [run_in_own_process(size, given) for size in sizes]
    if options.json is not None:
        told = {"torch": importlib.metadata.version("torch"), "reports": reports}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    failed = any(report["counts"].get("failed") for report in reports)
    native = options.backend == FASTCOMM and options.hosts == 1
    gloo = native and any(report["groups of Gloo"] for report in reports)
    if gloo and len(sizes) == 1:
        print("fastcomm made groups of Gloo's", flush=True)
    return 1 if failed or gloo or not any(report["tests"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
