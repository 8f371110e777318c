"""Everything that a GPU must show, on a machine that has one: ``make gpu-check``.

Builds with what is installed (torch with CUDA, nvcc, ninja, setuptools, pytest, hypothesis; nothing
is fetched), runs what pytest has for devices, then the GPU benchmarks::

    python tools/gpu_check.py --list
    python tools/gpu_check.py --steps build,programs,tests --budget 570
    python tools/gpu_check.py                       # continues where that ended

    python tools/gpu_check.py --rehearse            # where there is no GPU: on simulated devices

A step that was green is not run again while sources, device, torch and Python are the same
(``build/gpu-check/state.json``); ``--again`` runs it anyway. Every step runs even if one before it
failed, except those that need it. Logs, records and ``summary.json`` go to ``--out``. The summary
says for every step whether it is green, red, skipped with its reason, or not run.

Exit status: 1 if a chosen step is red or nvcc is missing, else 3 if one was not run, else 0.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import bounded_run
import cuda_toolkit
import gpu_device
import source_digest
from gpu_device import Device
from gpu_steps import ROOT, STEPS, Place, Step, Verdict, environment

FOLDER = ROOT / "build" / "gpu-check"
SOURCES = ("csrc", "fastcomm", "tests", "benchmarks", "tools", "setup.py", "pyproject.toml")
SHOWN = 60  # lines of a red step's log
SIMULATED = Device("simulated", "0.0", 8, "0.0")


class State:
    """The latest outcome of each step, in a file, with the digest of what it depends on."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.digest = digest
        self.steps: dict[str, dict[str, Any]] = {}
        if path.exists():
            try:
                self.steps = json.loads(path.read_text())
            except ValueError:  # not complete, or edited
                print(f"{path} cannot be read: every step runs again", flush=True)

    def green(self, step: Step) -> bool:
        """Tell whether a step was green with this digest, and all that it leaves is still there."""
        known = self.steps.get(step.name, {})
        there = all(any(ROOT.glob(pattern)) for pattern in step.leaves)
        return known.get("digest") == self.digest and known.get("state") == "green" and there

    def note(self, name: str, outcome: dict[str, Any]) -> None:
        """Write an outcome to the file."""
        self.steps[name] = {**outcome, "digest": self.digest}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".new")
        partial.write_text(json.dumps(self.steps, indent=1) + "\n")
        partial.replace(self.path)


def versions() -> dict[str, str]:
    """Return the versions of Python and packages, by name; torch is not imported."""
    found = {"python": platform.python_version()}
    for name in ("torch", "pytest", "setuptools", "ninja"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def run_step(step: Step, place: Place, limit: float) -> dict[str, Any]:
    """Run one step; return its outcome."""
    log_path = place.out / f"{step.name}.log"
    begin = time.monotonic()
    verdict: Verdict | None = None
    with log_path.open("w") as log:
        commands = step.commands(place)
        for number, command in enumerate(commands):
            print(f"$ {' '.join(command)}", file=log, flush=True)
            last = number == len(commands) - 1
            left = max(0.0, limit - (time.monotonic() - begin))
            verdict = _run_command(step, place, command, log, left, last, limit < step.limit)
            if verdict:
                break
    if verdict is None:
        try:
            verdict = step.judge(place)
        except Exception as error:  # a bad record must not stop the next steps
            verdict = Verdict("red", f"what it left cannot be read: {error!r}")
    seconds = round(time.monotonic() - begin, 1)
    for line in verdict.lines:
        print(f"  {line}", flush=True)
    if verdict.state == "red":
        print("\n".join(["  ...", *log_path.read_text(errors="replace").splitlines()[-SHOWN:]]))
    return {
        "state": verdict.state,
        "reason": verdict.reason,
        "seconds": seconds,
        "log": log_path.name,
        "lines": list(verdict.lines),
    }


def _run_command(
    step: Step,
    place: Place,
    command: Sequence[str],
    log: Any,
    limit: float,
    last: bool,
    limit_is_budget: bool,
) -> Verdict | None:
    """Run one command; return a verdict if it decides the step, else None."""
    output = None
    try:
        if last and step.output:
            output = (place.out / step.output).open("w")
        ended = bounded_run.run(
            command, log, limit, cwd=ROOT, environment=environment(place), output=output
        )
    except OSError as error:
        return Verdict("red", f"{command[0]} does not start: {error}")
    finally:
        if output:
            output.close()
    if ended.left:
        print(f"processes left behind, and killed: {ended.left}", file=log)
    if ended.status is None:
        killed = f"killed after {ended.seconds:.0f} s, with what it had started"
        if limit_is_budget:
            return Verdict("not run", f"{killed}: --budget was used up; run it again")
        return Verdict("red", killed)
    # Status 1 here means that a test or a check failed: the judge names it.
    is_judged = ended.status == 1 and ("pytest" in command or step.judges_failures)
    if ended.status == 0 or is_judged:
        return None
    how = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
    return Verdict("red", f"{Path(command[0]).name}: {how}, see {step.name}.log")


def why_not_begun(
    step: Step, place: Place, outcomes: dict[str, dict[str, Any]], left: float, first: bool
) -> str | None:
    """Return the reason why a step cannot begin, None if it can."""
    if step.needs_device and isinstance(place.device, str):
        return place.device
    if outcomes.get(step.needs, {}).get("state") in ("red", "not run"):
        return f"{step.needs} is {outcomes[step.needs]['state']}"
    if left < step.expected and not first:
        return f"{left:.0f} s of --budget are left, it takes about {step.expected}: run it again"
    return None


def check(
    steps: Iterable[Step], place: Place, state: State, budget: float, again: bool
) -> dict[str, dict[str, Any]]:
    """Run the steps that are not green, or all with ``again``; return every step's outcome."""
    begin = time.monotonic()
    outcomes: dict[str, dict[str, Any]] = {}
    begun = 0
    for step in steps:
        left = budget - (time.monotonic() - begin)
        if state.green(step) and not again:
            known = state.steps[step.name]
            outcomes[step.name] = {key: known[key] for key in known if key != "digest"}
            outcomes[step.name]["earlier"] = True
        elif place.simulated and not step.rehearsed:
            why = "simulated devices do not run it"
            outcomes[step.name] = {"state": "skipped", "reason": why, "seconds": 0.0}
        elif isinstance(place.device, Device) and place.device.count < step.devices:
            here = place.device.count
            why = f"needs {step.devices} GPUs, and {here} {'is' if here == 1 else 'are'} here"
            outcomes[step.name] = {"state": "skipped", "reason": why, "seconds": 0.0}
        elif reason := why_not_begun(step, place, outcomes, left, begun == 0):
            outcomes[step.name] = {"state": "not run", "reason": reason, "seconds": 0.0}
        else:
            begun += 1
            limit = min(step.limit, left)
            print(f"\n==== {step.name}: {step.what}; at most {limit:.0f} s", flush=True)
            outcome = outcomes[step.name] = run_step(step, place, limit)
            state.note(step.name, outcome)
            print(f"==== {step.name}: {outcome['state']} after {outcome['seconds']} s", flush=True)
        write_summary(place, state, outcomes)
    return outcomes


def write_summary(place: Place, state: State, outcomes: dict[str, dict[str, Any]]) -> None:
    """Write the outcomes so far, since this process may be ended at any time."""
    found = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": asdict(place.device) if isinstance(place.device, Device) else place.device,
        "versions": versions(),
        "digest": state.digest,
        "steps": {
            step.name: outcomes.get(step.name, {"state": "not run", "reason": "not chosen, or cut"})
            for step in STEPS
        },
    }
    (place.out / "summary.json").write_text(json.dumps(found, indent=1) + "\n")


def exit_status(outcomes: dict[str, dict[str, Any]]) -> int:
    """Return this program's exit status."""
    states = {outcome["state"] for outcome in outcomes.values()}
    return 1 if "red" in states else 3 if "not run" in states else 0


def chosen_steps(text: str) -> list[Step]:
    """Return the steps of a list such as "build,tests", in their own order; all for "".

    Raises:
        SystemExit: there is no such step.
    """
    names = [name for name in text.split(",") if name]
    known = [step.name for step in STEPS]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"gpu_check: no step {unknown[0]!r}; there are {', '.join(known)}")
    return [step for step in STEPS if not names or step.name in names]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=FOLDER / "out", help="logs, records, summary")
    parser.add_argument("--state", type=Path, default=FOLDER / "state.json")
    parser.add_argument("--steps", default="", help="which, with commas between; default: all")
    parser.add_argument("--list", action="store_true", help="list the steps, and what is green")
    parser.add_argument(
        "--rehearse", action="store_true", help="on simulated devices, what they can run"
    )
    parser.add_argument("--again", action="store_true", help="also what is green")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="seconds for all; the rest is not run"
    )
    return parser.parse_args(arguments)


def _ended(signum: int, _: Any) -> None:
    raise SystemExit(128 + signum)  # the exit kills the running command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return the exit status."""
    options = parse(arguments)
    device: Device | str = SIMULATED if options.rehearse else gpu_device.ask()
    place = Place(options.out.resolve(), device, options.rehearse)
    known = versions()
    name = device.name if isinstance(device, Device) else "no device"
    words = (name, place.architectures, known["torch"], known["python"])
    state = State(options.state.resolve(), source_digest.digest(SOURCES, *words))
    steps = chosen_steps(options.steps)
    if options.list:
        for step in steps:
            done = "green" if state.green(step) else ""
            print(f"{step.name:12} {done:6} {step.what}; {step.expected} s, at most {step.limit} s")
        return 0
    if not place.simulated and cuda_toolkit.find_cuda_home() is None:
        print("nvcc is missing: install the CUDA toolkit or set CUDA_HOME", file=sys.stderr)
        return 1
    place.out.mkdir(parents=True, exist_ok=True)
    print(f"device: {device}\n{known}", flush=True)
    signal.signal(signal.SIGTERM, _ended)
    outcomes = check(steps, place, state, options.budget, options.again)
    print()
    for name, outcome in outcomes.items():
        when = " (earlier)" if outcome.get("earlier") else ""
        print(
            f"{name:12} {outcome['state'] + when:18} {outcome['seconds']:6} s  {outcome['reason']}"
        )
    print(f"logs, records and summary.json are in {place.out}")
    return exit_status(outcomes)


if __name__ == "__main__":
    sys.exit(main())
